"""Hand-built recordings, with the source that their sites point into."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from moored.model.events import ArraySpec, Arrival, Compile, Conflict, Execution, Operand, Transfer
from moored.model.finding import Finding
from moored.model.module import Sources
from moored.model.recording import Header, Recording, SeamState
from moored.model.site import Site
from moored.rules.registry import explain
from moored.rules.thresholds import DEFAULTS, Thresholds

SEAMS = [SeamState("calls", True), SeamState("puts", True), SeamState("reads", True)]


def header(**fields: Any) -> Header:
    """A header of a run with a CPU and an accelerator."""
    usual: dict[str, Any] = {
        "argv": ["train.py", "--epochs", "1"],
        "exit": 0,
        "seconds": 20.0,
        "python": "3.12.1",
        "jax": "0.11.2",
        "devices": ["cpu:0", "accel:0"],
        "default_device": "accel:0",
        "seams": SEAMS,
    }
    return Header(**{**usual, **fields})


class Run:
    """A program's text, and the recording of a run of it."""

    def __init__(self, folder: Path, source: str, path: str = "train.py", **fields: Any) -> None:
        self.path = path
        self.text = textwrap.dedent(source)
        (folder / path).write_text(self.text, encoding="utf-8")
        self.recording = Recording(header(cwd=str(folder), **fields))

    @property
    def sources(self) -> Sources:
        """The program's text."""
        return Sources(self.recording.header.cwd)

    def site(self, expression: str, function: str = "<module>") -> int:
        """Index of the site of the first occurrence of an expression; "" is the site without a frame."""
        before, found, _ = self.text.partition(expression)
        assert found or not expression, f"{expression!r} is not in the source"
        line = before.count("\n") + 1
        column = len(before.rpartition("\n")[2].encode())
        end_line, end = line + expression.count("\n"), len(expression.rpartition("\n")[2].encode())
        site = Site(self.path, line, end_line, column, end + (column if line == end_line else 0), function)
        if site not in self.recording.sites:
            self.recording.sites.append(site)
        return self.recording.sites.index(site)

    def moved(
        self, expression: str, *, made_by: str | None = None, committed: bool | None = False, **fields: Any
    ) -> Run:
        """Add a row; ``shape`` and ``dtype`` tell the array, everything else is a field of Transfer."""
        array = ArraySpec(fields.pop("shape", (1000, 1000)), fields.pop("dtype", "float32"), committed)
        usual: dict[str, Any] = {"count": 1, "target": "accel:0", "explicit": False}
        origin = None if made_by is None else self.site(made_by)
        self.recording.transfers.append(
            Transfer(**{**usual, **fields}, site=self.site(expression), origin=origin, array=array)
        )
        return self

    def drifted(self, expression: str, **fields: Any) -> Run:
        """An uncommitted array on the CPU that something on the accelerator used."""
        usual: dict[str, Any] = {
            "direction": "d2d", "seam": "call", "api": "__getitem__", "function": "dynamic_slice",
            "argument": "[0]", "source": "cpu:0", "reason": "uncommitted",
        }  # fmt: skip
        return self.moved(expression, **{**usual, **fields})

    def uploaded(self, expression: str, **fields: Any) -> Run:
        """A host array as argument of a jitted function."""
        usual: dict[str, Any] = {
            "direction": "h2d", "seam": "call", "api": "jit", "function": "step", "argument": "[0]",
            "source": "host", "reason": "host-value", "committed": None,
        }  # fmt: skip
        return self.moved(expression, **{**usual, **fields})

    def read(self, expression: str, **fields: Any) -> Run:
        """A device array that Python read."""
        usual: dict[str, Any] = {
            "direction": "d2h", "seam": "read", "api": "float", "source": "accel:0", "target": "host",
            "reason": "read", "shape": (),
        }  # fmt: skip
        return self.moved(expression, **{**usual, **fields})

    def put(self, expression: str, **fields: Any) -> Run:
        """A put that the program asked for."""
        usual: dict[str, Any] = {
            "direction": "h2d", "seam": "put", "api": "device_put", "source": "host", "reason": "asked",
            "explicit": True, "committed": None,
        }  # fmt: skip
        return self.moved(expression, **{**usual, **fields})

    def baked(self, expression: str, **fields: Any) -> Run:
        """A constant of an executable."""
        usual: dict[str, Any] = {
            "direction": "d2h", "seam": "constant", "api": "jit", "source": "cpu:0", "target": "host",
            "reason": "constant",
        }  # fmt: skip
        return self.moved(expression, **{**usual, **fields})

    def called_back(self, expression: str, **fields: Any) -> Run:
        """Arrays that a callback was handed."""
        usual: dict[str, Any] = {
            "direction": "d2h", "seam": "callback", "api": "io_callback", "source": "device",
            "target": "host", "reason": "callback", "explicit": True, "committed": None,
        }  # fmt: skip
        return self.moved(expression, **{**usual, **fields})

    def _spec(self, fields: dict[str, Any], committed: bool | None) -> ArraySpec:
        return ArraySpec(fields.pop("shape", (1000, 1000)), fields.pop("dtype", "float32"), committed)

    def ran(self, expression: str, *, put_by: str | None = None, **fields: Any) -> Run:
        """A run on the CPU because of a committed argument."""
        array = self._spec(fields, True)
        usual: dict[str, Any] = {
            "api": "jit", "function": "step", "ran_on": "cpu:0", "default_device": "accel:0", "count": 1,
            "reason": "committed", "argument": "[1]", "nbytes": 4_000_000, "array": array,
            "origin": None if put_by is None else self.site(put_by),
        }  # fmt: skip
        if named_at := fields.pop("named_at", None):
            fields["named_at"] = self.site(named_at)
        self.recording.executions.append(Execution(**{**usual, **fields}, site=self.site(expression)))
        return self

    def compiled(self, expression: str, *, earlier: str | None = None, **fields: Any) -> Run:
        """A compilation for an argument that is committed now."""
        usual: dict[str, Any] = {
            "api": "jit", "function": "step", "reason": "commitment", "argument": "[0]", "n_changed": 1,
            "array": self._spec(fields, True), "before": "accel:0, uncommitted",
            "after": "accel:0, committed", "count": 1, "compile_ns": 200_000_000,
            "earlier": None if earlier is None else self.site(earlier),
        }  # fmt: skip
        self.recording.compiles.append(Compile(**{**usual, **fields}, site=self.site(expression)))
        return self

    def arrived(self, expression: str, *, started_by: str | None = None, **fields: Any) -> Run:
        """An array that landed on the CPU."""
        array = self._spec(fields, fields.pop("committed", False))
        usual: dict[str, Any] = {
            "api": "device_put", "reason": "no-op-put", "array": array, "place": "cpu:0", "count": 1,
            "nbytes": 4_000_000, "expected": "accel:0",
            "origin": None if started_by is None else self.site(started_by),
        }  # fmt: skip
        self.recording.arrivals.append(Arrival(**{**usual, **fields}, site=self.site(expression)))
        return self

    def refused(self, expression: str, *operands: tuple[str, tuple[int, ...], str, str | None]) -> Run:
        """A call that JAX refused; operands are (leaf, shape, place, line that committed it)."""
        self.recording.conflicts.append(
            Conflict(
                site=self.site(expression),
                api="add",
                function="add",
                count=1,
                operands=tuple(
                    Operand(leaf, ArraySpec(shape, "float32", True), place, by and self.site(by))
                    for leaf, shape, place, by in operands
                ),
            )
        )
        return self


PLACEMENTS = """\
import jax, pickle, threading
import jax.numpy as jnp

scale = jax.device_put(0.5, cpu)
ready = [jax.device_put(b) for b in batches]
restored = pickle.loads(blob)
for i in range(100):
    batch = jnp.from_dlpack(rows)
    state = step(state, batch)
    total = make(i)(total)
    norm = normalised(state)
losses = [float(v) for v in history]
print(optim.evaluate(state, scale))

@jax.jit
def normalised(x):
    jax.experimental.io_callback(log, None, x)
    jax.debug.print("{}", x.mean())
    return x / x.max()

params = params + noise
"""


def placements(folder: Path, **fields: Any) -> Run:
    """A run with a finding of all rules that ``training`` has none of."""
    run = Run(folder, PLACEMENTS, exit="ValueError", scalar_uploads=12_000, scalar_nbytes=60_000, **fields)
    run.arrived("jax.device_put(b)", count=3, nbytes=6_291_456)
    run.arrived("pickle.loads(blob)", reason="unpickled", place="accel:0", expected="", nbytes=8_388_608)
    run.arrived(
        "jnp.from_dlpack(rows)", api="from_dlpack", reason="dlpack-host", committed=True, count=100,
        nbytes=209_715_200,
    )  # fmt: skip
    run.ran("step(state, batch)", put_by="jnp.from_dlpack(rows)", count=100, dragged=1, nbytes=629_145_600)
    run.drifted(
        "step(state, batch)", reason="follows-committed", api="jit", function="step", beside="[1]",
        source="accel:0", target="cpu:0", nbytes=4_194_304,
    )  # fmt: skip
    run.compiled("step(state, batch)", earlier="step(state, batch)", compile_ns=41_500_000_000)
    run.compiled(
        "normalised(state)", function="normalised", reason="default-device", argument="", array=None,
        before="no default_device", after="default_device cpu:0",
    )  # fmt: skip
    run.drifted(
        "optim.evaluate(state, scale)", reason="resharded", api="jit", function="evaluate", library="optax",
        count=2, nbytes=8_192, source="accel:0,1 P('x',)", target="accel:0,1 replicated", shape=(1024,),
    )  # fmt: skip
    run.baked("make(i)(total)", shape=(2048, 1024), count=100, nbytes=838_860_800, same_object=99)
    run.read("float(v)", count=100, nbytes=400, wait_ns=3_000_000, copy_ns=1_000_000)
    run.called_back(
        "jax.experimental.io_callback(log, None, x)", count=100, nbytes=419_430_400, wait_ns=800_000_000
    )
    run.called_back('jax.debug.print("{}", x.mean())', api="debug_callback", count=100, nbytes=400, shape=())
    return run.refused(
        "params + noise",
        ("[0]", (1024, 1024), "accel:0", None),
        ("[1]", (1024,), "cpu:0", "jax.device_put(0.5, cpu)"),
    )


def only(run: Run) -> Finding:
    """The one finding in a run."""
    findings = explain(run.recording, run.sources)
    assert len(findings) == 1, findings
    return findings[0]


def severities(run: Run, limits: Thresholds = DEFAULTS) -> list[tuple[str, str]]:
    """Rule and severity of each finding in a run."""
    return [(f.rule, f.severity) for f in explain(run.recording, run.sources, limits)]


ARTICLE = """\
import jax
import jax.numpy as jnp

cpu0 = jax.devices("cpu")[0]
with jax.default_device(cpu0):
    array = load("train.safetensors")

for i in range(10):
    item = array[i]
    total = float(item.sum())
"""


def article(folder: Path, **fields: Any) -> Run:
    """The published program, in its full size."""
    return Run(folder, ARTICLE, "commitment_issues.py", **fields).drifted(
        "array[i]",
        made_by='load("train.safetensors")',
        shape=(530640, 6, 1024),
        dtype="uint16",
        count=10,
        nbytes=65_205_043_200,
        call_ns=4_500_000_000,
    )


TRAINING = """\
import jax
import numpy as np

cpu = jax.devices("cpu")[0]
with jax.default_device(cpu):
    tokens = load_file(path)["tokens"]

for i in range(100):
    batch = jax.device_put(tokens[i * 4096 : (i + 1) * 4096].reshape(4, 1024), gpu)
    table = jax.device_put(embeddings)
    loss = step(params, opt, batch, table, dropout=rates)
    history.append(float(loss))
    if i % 10 == 0:
        print(f"step {i}: {loss:.3f}")
evaluate(raw)
"""


def training(folder: Path, **fields: Any) -> Run:
    """A run with a finding of every kind."""
    run = Run(folder, TRAINING, **fields)
    run.drifted(
        "tokens[i * 4096 : (i + 1) * 4096]", made_by="load_file(path)", shape=(8388608,), dtype="uint16",
        count=100, nbytes=1_677_721_600, call_ns=1_850_000_000,
    )  # fmt: skip
    call = "step(params, opt, batch, table, dropout=rates)"
    for key, shape, nbytes in (("b", (1000,), 4_000), ("w", (1000, 2048), 8_192_000)):
        run.uploaded(
            call, argument=f"[0]['{key}']", shape=shape, count=100, nbytes=100 * nbytes, same_object=99,
            call_ns=200_000_000,
        )  # fmt: skip
    run.uploaded(call, argument="['dropout']", shape=(300,), count=100, nbytes=120_000, same_object=99)
    run.moved(
        call, direction="d2d", seam="call", api="jit", function="step", argument="[1].mu", beside="[2]",
        count=1, nbytes=4_194_304, source="accel:1", reason="follows-committed", shape=(1024, 1024),
    )  # fmt: skip
    run.put(
        "jax.device_put(embeddings)", count=100, nbytes=100 * 16_777_216, same_object=99, call_ns=9_000_000
    )
    run.read("float(loss)", count=100, nbytes=400, wait_ns=2_400_000_000, copy_ns=1_000_000)
    run.read('f"step {i}: {loss:.3f}"', api="format", count=10, nbytes=40, wait_ns=40_000_000)
    run.uploaded("evaluate(raw)", function="evaluate", nbytes=1_048_576, shape=(256, 1024))
    return run
