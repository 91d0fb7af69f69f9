"""What the pages for people say is so: programs, commands, links and make targets exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import moored
from conftest import SRC
from moored import cli

ROOT = SRC.parent
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def test_the_program_in_the_readme_is_the_example() -> None:
    first, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert first == (ROOT / "examples" / "drift.py").read_text()
    assert len([line for line in first.splitlines() if line]) <= 12


@pages
def test_the_commands_exist(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"(?:^    |`)moored (\w+)", text, re.MULTILINE)
    assert set(named) <= set(cli.COMMANDS)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"(?:^    |`)make (\w+)", text, re.MULTILINE)) <= set(targets)


@pages
def test_the_public_names_exist(page: Path) -> None:
    assert set(re.findall(r"\bmoored\.([a-z]+)\(", page.read_text())) <= set(moored.__all__)


@pages
def test_the_files_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\(([^):]+)\)", text)
    paths = re.findall(r"`((?:tests|examples|benchmarks|docs|src)/[\w/.]+)`", text)
    assert [name for name in links + paths if "NAME" not in name and not (ROOT / name).exists()] == []
