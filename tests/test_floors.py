"""Who may import whom: floors, no circles, private JAX in one file, four folders without JAX.

ARCHITECTURE.md says why. Every import counts, wherever it stands: in a function, under TYPE_CHECKING,
or by a name in a string.
"""

from __future__ import annotations

import ast
import graphlib
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from conftest import SRC

ROOT = SRC.parent
FLOORS = {
    1: {"errors", "units"},  # two files of one folder: they may know each other
    2: {"model", "placement", "data"},
    3: {"trace", "rules", "report"},
    4: {"lint", "diagnose"},
    5: {"bench", "pytest_plugin", "notebook"},
    6: {"cli"},
    7: {"__init__", "__main__"},  # the front door: names what is inside, and is named by nobody inside
}
FLOOR_OF = {part: floor for floor, parts in FLOORS.items() for part in parts}
WITHOUT_JAX = {"model", "rules", "report", "lint"}
PRIVATE = re.compile(r"\bjax\._src\b|\bjaxlib\b")
PRIVATE_AT_HOME = "moored.trace.seams"
FRONT_DOOR = {"moored", "moored.__main__"}
OF_JAX = {"jaxlib", "jax_plugins", "libtpu"}  # come with the user's build of JAX


def modules(source: Path) -> dict[str, ast.Module]:
    """Every module under ``source`` by its dotted name."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return found


def part_of(module: str) -> str:
    """Which entry of FLOORS a module belongs to: ``moored.trace.seams`` -> ``trace``."""
    return "__init__" if module == "moored" else module.split(".")[1]


def imports(name: str, tree: ast.Module) -> Iterator[tuple[int, str, str | None]]:
    """(line, module, name taken from it) of every import in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, None
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: a relative import; write it out"
            for alias in node.names:
                yield node.lineno, node.module or "", alias.name
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value, None


def edges(tree: dict[str, ast.Module]) -> dict[str, set[tuple[int, str]]]:
    """What each module imports, as (line, module): a module of moored, or a foreign top-level name."""
    graph: dict[str, set[tuple[int, str]]] = {name: set() for name in tree}
    for name, module in tree.items():
        for line, target, taken in imports(name, module):
            if target.partition(".")[0] != "moored":
                graph[name].add((line, target.partition(".")[0]))
            elif taken is not None and f"{target}.{taken}" in tree:
                graph[name].add((line, f"{target}.{taken}"))
            elif not (target == "moored" and taken == "__version__"):
                graph[name].add((line, target))
    return graph


def broken_floors(tree: dict[str, ast.Module]) -> list[str]:
    problems = []
    for name, targets in edges(tree).items():
        part = part_of(name)
        if part not in FLOOR_OF:
            problems.append(f"{name}: {part} stands on no floor")
            continue
        for line, target in sorted(targets):
            if target.partition(".")[0] != "moored" or name in FRONT_DOOR or part_of(target) == part:
                continue
            floor, theirs = FLOOR_OF[part], FLOOR_OF.get(part_of(target), 0)
            if theirs > floor or (theirs == floor and {part, part_of(target)} != FLOORS[1]):
                problems.append(f"{name}:{line}: floor {floor} imports {target} of floor {theirs}")
    return problems


def circle(tree: dict[str, ast.Module]) -> list[str]:
    graph = {name: {t for _, t in targets if t in tree} for name, targets in edges(tree).items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def private_jax(tree: dict[str, ast.Module]) -> list[str]:
    """Where ``jax._src`` is named in code, by a string too, or ``jaxlib`` is imported."""
    problems = set()
    for name, module in tree.items():
        if name == PRIVATE_AT_HOME:
            continue
        for line, target, taken in imports(name, module):
            if PRIVATE.search(f"{target}.{taken}"):
                problems.add(f"{name}:{line}: {target if taken is None else f'{target}.{taken}'}")
        for node in ast.walk(module):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "jax._src":
                problems.add(f"{name}:{node.lineno}: jax._src")
            if isinstance(node, ast.Constant) and re.fullmatch(r"jax\._src[\w.]*", str(node.value)):
                problems.add(f"{name}:{node.lineno}: {node.value}")
    return sorted(problems)


def jax_where_none_may_be(tree: dict[str, ast.Module]) -> list[str]:
    """Chains of imports by which a folder that must work without JAX reaches it."""
    graph = edges(tree)
    problems = []
    for start in sorted(name for name in tree if part_of(name) in WITHOUT_JAX):
        seen, queue = {start}, [[start]]
        while queue:
            chain = queue.pop()
            for _, target in sorted(graph[chain[-1]]):
                if target in {"jax", "jaxlib"}:
                    problems.append(" -> ".join([*chain, target]))
                elif target in graph and target not in seen:
                    seen.add(target)
                    queue.append([*chain, target])
    return problems


CHECKS = [broken_floors, circle, private_jax, jax_where_none_may_be]


@pytest.mark.parametrize("check", CHECKS)
def test_the_source_keeps_to_it(check) -> None:
    assert check(modules(SRC)) == []


def test_every_folder_stands_on_a_floor() -> None:
    assert {part_of(name) for name in modules(SRC)} <= FLOOR_OF.keys()


@pytest.mark.parametrize(
    ("check", "files", "problems"),
    [
        (
            broken_floors,
            {"model/a.py": "def f():\n    import moored.trace.b", "trace/b.py": ""},
            ["moored.model.a:2: floor 2 imports moored.trace.b of floor 3"],
        ),
        (
            broken_floors,
            {"rules/a.py": "if TYPE_CHECKING:\n    from moored.report import b", "report/b.py": ""},
            ["moored.rules.a:2: floor 3 imports moored.report.b of floor 3"],
        ),
        (
            broken_floors,
            {"trace/a.py": "import_module('moored.cli.b')", "cli/b.py": "", "__init__.py": ""},
            ["moored.trace.a:1: floor 3 imports moored.cli.b of floor 6"],
        ),
        (
            broken_floors,
            {"bench/a.py": "from moored import where", "__init__.py": "import moored.cli.b", "cli/b.py": ""},
            ["moored.bench.a:1: floor 5 imports moored of floor 7"],
        ),
        (broken_floors, {"attic/a.py": ""}, ["moored.attic.a: attic stands on no floor"]),
        (
            broken_floors,
            {"cli/a.py": "from moored import __version__\nimport moored.units", "units.py": ""},
            [],
        ),
        (
            circle,
            {"trace/a.py": "import moored.trace.b", "trace/b.py": "def f():\n    from moored.trace import a"},
            ["moored.trace.a", "moored.trace.b", "moored.trace.a"],
        ),
        (private_jax, {"trace/a.py": "from jax._src import core"}, ["moored.trace.a:1: jax._src.core"]),
        (private_jax, {"trace/a.py": "from jax import _src"}, ["moored.trace.a:1: jax._src"]),
        (private_jax, {"trace/a.py": "import jax\njax._src.core"}, ["moored.trace.a:2: jax._src"]),
        (private_jax, {"trace/a.py": "def f():\n    import jaxlib"}, ["moored.trace.a:2: jaxlib"]),
        (
            private_jax,
            {"trace/a.py": "importlib.import_module('jax._src.pjit')"},
            ["moored.trace.a:1: jax._src.pjit"],
        ),
        (private_jax, {"trace/seams.py": "from jax._src import core"}, []),
        (private_jax, {"trace/a.py": "x = find('jax._src.pjit')"}, ["moored.trace.a:1: jax._src.pjit"]),
        (private_jax, {"trace/a.py": '"""Of jax._src."""\nname = metadata.version("jaxlib")'}, []),
        (
            jax_where_none_may_be,
            {"rules/a.py": "import moored.placement", "placement.py": "def f():\n    import jax.numpy"},
            ["moored.rules.a -> moored.placement -> jax"],
        ),
    ],
)
def test_the_checks_can_fail(check, files: dict[str, str], problems: list[str], tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / "moored" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = check(modules(tmp_path))
    if check is circle:
        assert sorted(set(found)) == sorted(set(problems))
    else:
        assert found == problems


def distributions(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", requirement)[0].lower() for requirement in requirements}


def test_dependencies_are_what_the_source_imports() -> None:
    """Each hard dependency is imported, each foreign import is declared, and each has its reason on paper."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = distributions(project["dependencies"])
    extras = distributions([r for group in project["optional-dependencies"].values() for r in group])
    foreign = {target.partition(".")[0] for targets in edges(modules(SRC)).values() for _, target in targets}
    foreign -= {"moored", *sys.stdlib_module_names, *OF_JAX}
    distribution_of = metadata.packages_distributions()
    imported = {distribution_of.get(name, [name])[0].lower() for name in foreign}
    assert core <= imported, f"nothing in src imports {core - imported}"
    assert imported <= core | extras, f"undeclared: {imported - core - extras}"
    reasons = (ROOT / "docs" / "dependencies.md").read_text()
    assert {name for name in (core | extras) - {"moored"} if f"`{name}`" not in reasons} == set()
