"""What tracing costs: the same calls with the tracer attached and without, in alternating rounds.

python benchmarks/overhead.py [--rounds 15] [--only step --only tiny] [--json]

A round attaches, warms up and times a batch of calls, detaches, and does the same untraced; every
other round goes the other way round. The ratio of the medians and of the least are printed, with the spread.
The step is sized so that one takes about 5 ms on this machine. Nothing here is asserted.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from moored.bench.harness import Bar, Spread, spread
from moored.trace.collect import Collector
from moored.units import format_seconds

STEP_SECONDS = 0.005
BATCH_SECONDS = 0.15  # of timed calls in one half of a round
LEAVES = 20

Batch = Callable[[int], None]


def step_case() -> tuple[Batch, str]:
    """A jitted training step over 20 parameter leaves, each call blocked on."""

    def loss(params: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
        for layer in params:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return jnp.mean(x**2)

    @jax.jit
    def step(params: list[dict[str, jax.Array]], x: jax.Array) -> list[dict[str, jax.Array]]:
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))

    width = 64
    keys = jax.random.split(jax.random.key(0), LEAVES // 2)
    params = [{"w": jax.random.normal(key, (width, width)) / 8, "b": jnp.zeros(width)} for key in keys]

    def seconds(rows: int) -> float:
        x = jnp.ones((rows, width))
        jax.block_until_ready(step(params, x))
        return min(_time(lambda n: _steps(step, params, x, n), 1) for _ in range(7))

    rows = 64
    for _ in range(4):  # time is nearly linear in the rows: a few corrections are enough
        rows = max(1, round(rows * min(8.0, STEP_SECONDS / seconds(rows))))
    x = jnp.ones((rows, width))
    return lambda n: _steps(step, params, x, n), f"a jitted step with {LEAVES} leaves, batch of {rows}"


def _steps(step: Callable[..., object], params: object, x: jax.Array, n: int) -> None:
    for _ in range(n):
        params = step(params, x)
        jax.block_until_ready(params)


def tiny_case() -> tuple[Batch, str]:
    """A jitted addition of two arrays of eight numbers."""
    add = jax.jit(lambda a, b: a + b)
    a, b = jnp.ones(8), jnp.ones(8)

    def batch(n: int) -> None:
        for _ in range(n):
            result = add(a, b)
        result.block_until_ready()

    return batch, "jit(a + b), eight numbers each"


def eager_case() -> tuple[Batch, str]:
    """Three operations outside jit."""
    a, b = jnp.ones(8), jnp.ones(8)

    def batch(n: int) -> None:
        for _ in range(n):
            result = (a * b + a) / b
        result.block_until_ready()

    return batch, "(a * b + a) / b outside jit"


def numpy_case() -> tuple[Batch, str]:
    """A jitted call that is given a numpy array each time: one upload a call to record."""
    double = jax.jit(lambda a: a * 2)
    a = np.ones(256, np.float32)

    def batch(n: int) -> None:
        for _ in range(n):
            result = double(a)
        result.block_until_ready()

    return batch, "jit(a * 2) of a numpy array, 256 numbers"


CASES = {"step": step_case, "tiny": tiny_case, "eager": eager_case, "numpy": numpy_case}


def _time(batch: Batch, calls: int) -> float:
    """Seconds per call."""
    start = time.perf_counter()
    batch(calls)
    return (time.perf_counter() - start) / calls


def calls_of(batch: Batch) -> int:
    """How many calls fill the timed half of a round."""
    batch(3)
    return max(1, math.ceil(BATCH_SECONDS / _time(batch, 20)))


def measure(batch: Batch, calls: int, rounds: int, bar: Bar) -> dict[str, list[float]]:
    """Seconds per call of every half round, traced and untraced (after moored has left)."""
    samples: dict[str, list[float]] = {"traced": [], "untraced": []}
    for number in range(rounds):
        for kind in ("traced", "untraced") if number % 2 == 0 else ("untraced", "traced"):
            collector = Collector() if kind == "traced" else None
            if collector is not None:
                collector.attach()
            try:
                batch(max(3, calls // 10))
                samples[kind].append(_time(batch, calls))
            finally:
                if collector is not None:
                    collector.close()
        bar.advance(1)
    return samples


def summary(samples: dict[str, list[float]], what: str) -> dict[str, object]:
    traced, untraced = spread(samples["traced"]), spread(samples["untraced"])
    by_round = [t / u for t, u in zip(samples["traced"], samples["untraced"], strict=True)]
    before = spread(samples["before"])
    return {
        "what": what,
        "before_seconds": samples["before"],
        "after_to_before": untraced.median / before.median,
        "traced_seconds": samples["traced"],
        "untraced_seconds": samples["untraced"],
        "ratio_of_medians": traced.median / untraced.median,
        "ratio_of_least": traced.least / untraced.least,
        "ratio_by_round": msgspec.structs.asdict(spread(by_round)),
    }


def _text(figures: Spread) -> str:
    least, most = format_seconds(figures.least), format_seconds(figures.most)
    return f"{format_seconds(figures.median)} ({least} .. {most})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", action="append", choices=list(CASES), help="one case; can be repeated")
    parser.add_argument("--json", action="store_true", help="all samples as JSON on stdout")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    names = args.only or list(CASES)
    results: dict[str, dict[str, object]] = {}
    with Bar(len(names) * args.rounds) as bar:
        cases = {name: CASES[name]() for name in names}
        calls = {name: calls_of(batch) for name, (batch, _) in cases.items()}
        # Before moored has attached for the first time in this process.
        before = {name: [_time(cases[name][0], calls[name]) for _ in range(args.rounds)] for name in names}
        for name in names:
            bar.say(name)
            batch, what = cases[name]
            samples = measure(batch, calls[name], args.rounds, bar) | {"before": before[name]}
            results[name] = summary(samples, what)
            if not args.json:
                with bar.aside():
                    _print(name, results[name], samples)
    if args.json:
        print(json.dumps({"jax": jax.__version__, "rounds": args.rounds, "cases": results}, indent=2))


def _print(name: str, result: dict[str, object], samples: dict[str, list[float]]) -> None:
    rounds = result["ratio_by_round"]
    assert isinstance(rounds, dict)
    print(f"{name}: {result['what']}")
    print(f"  untraced {_text(spread(samples['untraced']))} a call, median (least .. most)")
    print(f"  traced   {_text(spread(samples['traced']))}")
    print(
        f"  ratio    {result['ratio_of_medians']:.3f} of medians, {result['ratio_of_least']:.3f} of least; "
        f"by round {rounds['median']:.3f} ({rounds['least']:.3f} .. {rounds['most']:.3f})\n"
        f"  left     {result['after_to_before']:.3f}: untraced calls between attachings, to those before the "
        "first\n",
        flush=True,
    )


if __name__ == "__main__":
    main()
