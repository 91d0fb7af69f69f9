"""Makes docs/placement.md by running every operation of its table.

    python docs/make_placement.py PYTHON...    run them in each interpreter, and write the page anew
    python docs/make_placement.py --check      compare page and data with this interpreter's JAX

What was observed is kept in tests/placement_observed.json, by JAX version; the page is rendered from it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "placement.md"
DATA = ROOT / "tests" / "placement_observed.json"
PROGRAM = ROOT / "tests" / "programs" / "observe_placement.py"
sys.path.insert(0, str(ROOT / "tests"))

from placement_operations import FUNCTIONS, SECTIONS, SETUP  # noqa: E402

Data = dict[str, dict[str, list[str]]]  # JAX version -> operation -> cells

COLUMNS = ("committed", "lands on", "moves")


@dataclass(frozen=True)
class Claim:
    """A sentence of the page, and the rows that show it: cells as in the table, None where any will do."""

    text: str
    shown_by: dict[str, tuple[str | None, str | None, str | None]]


_HOME = "with at(home): x = "
CLAIMS = [
    Claim(
        "An array is always *on* some device, and besides it is either *committed* to that device or not. "
        "Uncommitted means parked: the next operation runs on the default device, and JAX copies the array "
        "there.",
        {"u + 1": ("no", "default", "`u` to default"), "twice(u)": ("no", "default", "`u` to default")},
    ),
    Claim(
        "It copies all of it, however little is asked for, and again each time: the copy is thrown away.",
        {
            "u[3]": ("no", "default", "`u` to default"),
            "[u[i] for i in (3, 4, 5)]": ("no", "default", "3 x `u` to default"),
        },
    ),
    Claim(
        "A committed array decides where the operation runs. The result is committed as well, and what is "
        "uncommitted comes along.",
        {"c[3]": ("yes", "home", "nothing"), "total(c, d)": ("yes", "home", "`d` to home")},
    ),
    Claim(
        "Two operands committed to different devices are an error: JAX moves neither.",
        {"jnp.concatenate([c, e])": ("-", "raises ValueError", "nothing")},
    ),
    Claim(
        "Naming a device commits, even the one where the array is already, which copies nothing. A put that "
        "names none commits nothing, and leaves an array where it is.",
        {
            "jax.device_put(u, home)": ("yes", "home", "nothing: it is `u`'s buffer"),
            "jax.device_put(u)": ("no", "home", "nothing: it is `u`'s buffer"),
            "jnp.asarray(h, device=home)": ("yes", "home", "`h` to home"),
        },
    ),
    Claim(
        "`default_device` names a device for operations, not for arrays: what is made inside is "
        "uncommitted, and drifts once outside. Inside, it rules each call that nothing committed decides, "
        "whatever made the operands.",
        {
            _HOME + "jnp.zeros((8, 64))": ("no", "home", "nothing"),
            _HOME + "twice(d)": ("no", "home", "`d` to home"),
            _HOME + "twice(e)": ("yes", "default", "nothing"),
        },
    ),
    Claim(
        "It does not reach into a jitted function, nor into another thread; and a generator that is "
        "suspended inside it leaks it to whoever consumes the generator.",
        {
            "jax.jit(inside)(d)": ("no", "default", "nothing"),
            _HOME + "in_thread(lambda: jnp.zeros((8, 64)))": ("no", "default", "nothing"),
            "while_suspended(lambda: jnp.zeros((8, 64)))": ("no", "home", "nothing"),
        },
    ),
    Claim(
        "`device_put` inside a jitted function does not move the computation either; `out_shardings` does, "
        "and pulls the arguments.",
        {
            "jax.jit(lambda x: jax.device_put(x, home) * 2)(d)": ("no", "default", "nothing"),
            "to_home(d)": ("yes", "home", "`d` to home"),
        },
    ),
    Claim(
        "A jitted function is placed by the arguments that it uses: one that it drops neither moves nor "
        "commits. If one that it uses is committed, all its results are, also those that do not depend on "
        "it.",
        {
            "first(d, c)": ("no", "default", "nothing"),
            "unused(c)": ("no", "default", "nothing"),
            "beside(c)": ("yes", "home", "nothing"),
        },
    ),
    Claim(
        "An array that it closes over does not count: it is read out and baked into the program.",
        {"jax.jit(lambda x: x + c[0])(d)": ("no", "default", "`c` to the host")},
    ),
    Claim(
        "Only what hands back the very same buffer leaves an uncommitted array in peace.",
        {
            "u[:]": ("no", "home", "nothing: it is `u`'s buffer"),
            "jnp.asarray(u)": ("no", "home", "nothing: it is `u`'s buffer"),
            "u.astype(jnp.float32)": ("no", "home", "nothing: it is `u`'s buffer"),
            "u.reshape(-1)": ("no", "default", "`u` to default"),
            "jnp.array(u)": ("no", "default", "`u` to default"),
        },
    ),
    Claim(
        "What JAX makes by itself is made on the default device, and follows a committed array from there, "
        "whole: zeros with `device=`, the zeros of `zeros_like` or of an optimiser's state, the ones that a "
        "gradient starts from, even numpy beside a committed array.",
        {
            "jnp.zeros((8, 64), device=home)": ("yes", "home", "a new `f32[8,64]` to home"),
            "jnp.zeros_like(c)": ("yes", "home", "a new array of `c`'s shape to home"),
            "optax.adam(1e-3).init(c)": (None, None, "2 x a new array of `c`'s shape to home"),
            "jax.grad(loss)(c, d)": ("yes", "home", "a new array of `c`'s shape to home"),
            "jnp.concatenate([c, h])": ("yes", "home", "`h` to default; `h` to home"),
        },
    ),
    Claim(
        "numpy is uploaded on each call that it is handed to; in a jitted call straight to where the call "
        "runs.",
        {"twice(h)": ("no", "default", "`h` to default"), "total(c, h)": ("yes", "home", "`h` to home")},
    ),
    Claim(
        "A detour loses the placement: pickle and a checkpoint that is restored without a target forget "
        "where the array was. dlpack is the other way about: what it hands over is committed.",
        {
            "pickle.loads(pickle.dumps(c))": ("no", "default", None),
            "orbax_restored(c)": ("yes", "default", None),
            "jnp.from_dlpack(u)": ("yes", "home", "nothing: it is `u`'s buffer"),
        },
    ),
]

_NOTES = {
    "Random keys": "`keys` holds typed keys, `raw_keys` their older form; both are arrays like any other.",
    "Converting and putting": "*In place*: a CPU device uses numpy's own memory, if aligned to 64 bytes.",
    "Calls: jit and transformations": "What a function closes over is read once for each compilation.",
    "Into Python, numpy and files, and back": (
        "*Read in place*: numpy looks at the memory of a CPU device, and of the simulated accelerator,\n"
        "without a copy; from a GPU or TPU each of these is a copy that the program waits for."
    ),
    "Libraries": (
        "`file_of(shape)` is a file with such an array, `orbax_restored(x)` is `x` saved and restored\n"
        "without saying where to, `linear()` an `nnx.Linear`. What is read from a file is uploaded as numpy."
    ),
}

_INTRODUCTION = """\
# How JAX places things

<!-- Made by docs/make_placement.py, which runs every line of the table: edit that, not this. -->

Where does an array live, is it committed there, and what moves when it is used? Every answer below was
observed by running the line on JAX {versions}. *Home* is the CPU device; the *default* device
is another, a (simulated) accelerator; *other* is a second accelerator. What moved was told by XLA's profiler
and by the addresses of buffers, not by moored; each row is also a test of moored's tracer, which has to name
the same bytes.

## A mental model

"""

_TABLE = """\
## The table

What the lines below work with:

```python
{setup}```

and a few functions:

```python
{functions}```

*committed*: whether the result is. *lands on*: where it is; several results are parted by a slash. *moves*:
what was copied from one place to another, the whole array unless a percentage says otherwise; scalars of 8
bytes and less that JAX sends along are left out. Where JAX versions differ, the cell says what each does.
"""


def observe(python: str) -> dict[str, Any]:
    """What one interpreter's JAX does, and what moored says of it.

    Raises:
        RuntimeError: the operations could not be run there.
    """
    choosing = ("JAX_", "XLA_", "PJRT_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(choosing)}
    run = subprocess.run(
        [python, os.fspath(PROGRAM)], env=environment, capture_output=True, text=True, check=False
    )
    if run.returncode != 0:
        raise RuntimeError(f"{python} {PROGRAM} failed:\n{run.stderr[-3000:]}")
    observed: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return observed


def cells_of(observed: dict[str, Any]) -> dict[str, list[str]]:
    """The cells of each operation; a library that is not installed has one that says so."""
    return {row["code"]: row.get("cells") or ["-", row["missing"], "-"] for row in observed["rows"]}


def differences(data: Data, observed: dict[str, Any]) -> list[str]:
    """In which rows a JAX does other than the data says; libraries that are missing here do not count."""
    known = data[observed["jax"]]
    found = []
    for row in observed["rows"]:
        if "missing" not in row and row["cells"] != known.get(row["code"]):
            found.append(f"{row['code']}: {known.get(row['code'])} in the table, {row['cells']} here")
    return found


def broken_claims(data: Data) -> list[str]:
    """Sentences that a row of some version does not bear out."""
    return [
        f"{claim.text} - but JAX {version}, {code}: {cells.get(code)}"
        for claim in CLAIMS
        for code, wanted in claim.shown_by.items()
        for version, cells in data.items()
        if code not in cells or any(w not in (None, is_) for w, is_ in zip(wanted, cells[code], strict=True))
    ]


def render(data: Data) -> str:
    """The page."""
    *earlier, last = data
    out = [_INTRODUCTION.format(versions=f"{', '.join(earlier)} and {last}" if earlier else last)]
    for claim in CLAIMS:
        out.append(f"- {claim.text}  \n  {', '.join(f'`{code}`' for code in claim.shown_by)}\n")
    out.append("\n" + _TABLE.format(setup=SETUP, functions=FUNCTIONS))
    for section, operations in SECTIONS.items():
        out.append(f"\n### {section}\n\n" + (f"{_NOTES[section]}\n\n" if section in _NOTES else ""))
        out.append(f"| | {' | '.join(COLUMNS)} |\n|---|---|---|---|\n")
        for operation in operations:
            cells = [_cell(data, operation.code, column) for column in range(len(COLUMNS))]
            out.append(f"| `{operation.code}` | {' | '.join(cells)} |\n")
    return "".join(out)


def _cell(data: Data, code: str, column: int) -> str:
    """One cell; where versions differ, all that they say."""
    said: dict[str, list[str]] = {}
    for version, cells in data.items():
        said.setdefault(cells[code][column], []).append(".".join(version.split(".")[:2]))
    if len(said) == 1:
        return next(iter(said))
    return "<br>".join(f"**{', '.join(versions)}:** {text}" for text, versions in said.items())


def load() -> Data:
    """The data behind the page."""
    data: Data = json.loads(DATA.read_text(encoding="utf-8"))
    return data


def save(data: Data) -> None:
    """Write data and page; one row a line, so that a change can be reviewed."""
    versions = [
        f' "{version}": {{\n'
        + ",\n".join(f"  {json.dumps(code)}: {json.dumps(cells)}" for code, cells in rows.items())
        + "\n }"
        for version, rows in data.items()
    ]
    DATA.write_text("{\n" + ",\n".join(versions) + "\n}\n", encoding="utf-8")
    PAGE.write_text(render(data), encoding="utf-8")


def check() -> list[str]:
    """What is stale in page and data, as this interpreter's JAX sees it."""
    data = load()
    problems = broken_claims(data)
    if PAGE.read_text(encoding="utf-8") != render(data):
        problems.append(f"{PAGE.name} is not what {DATA.name} says")
    observed = observe(sys.executable)
    if observed["jax"] not in data:
        return [*problems, f"JAX {observed['jax']} is not in the table, which has {', '.join(data)}"]
    return problems + differences(data, observed)


def main() -> int:
    """Write the page, or check it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("python", nargs="*", help="interpreters with JAX and moored, one for each version")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the page is stale")
    options = parser.parse_args()
    if options.check == bool(options.python):
        parser.error("name the interpreters to run, or --check")
    if options.check:
        problems = check()
    else:
        observed = [observe(python) for python in options.python]
        data = {o["jax"]: cells_of(o) for o in observed}
        problems = broken_claims(data)
        save(data)
    print("\n".join(problems) or f"{PAGE.relative_to(ROOT)} is up to date")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
