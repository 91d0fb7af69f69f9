"""docs/placement.md: it says what this JAX does, and moored's tracer names what moved, row by row.

All rows run once, in a process of their own; what JAX does is observed there without moored (see
programs/observe_placement.py). A row on which the tracer is known to be wrong is a strict xfail.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import sys

import pytest

from conftest import SRC
from isolated import run
from moored.trace import simulate
from placement_operations import SECTIONS, Operation, operations

_spec = importlib.util.spec_from_file_location("make_placement", SRC.parent / "docs" / "make_placement.py")
page = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = page  # where its dataclass looks itself up
_spec.loader.exec_module(page)

needs_accelerator = pytest.mark.skipif(
    simulate.plugin_library() is None, reason="the simulated accelerator (moored[sim]) is not installed"
)
RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


@functools.cache
def observed() -> dict:
    done = run(RUN, os.fspath(page.PROGRAM))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@functools.cache
def rows() -> dict[str, dict]:
    return {row["code"]: row for row in observed()["rows"]}


def row(operation: Operation) -> dict:
    found = rows()[operation.code]
    if "missing" in found:
        pytest.skip(f"{operation.needs} is {found['missing']}")
    return found


def every(*, but_blind: bool) -> list:
    blind = lambda o: [pytest.mark.xfail(strict=True, reason=o.blind)] if but_blind and o.blind else []  # noqa: E731
    return [pytest.param(o, id=o.code, marks=blind(o)) for o in operations()]


@needs_accelerator
@pytest.mark.parametrize("operation", every(but_blind=False))
def test_the_table_says_what_this_jax_does(operation: Operation) -> None:
    found, data = row(operation), page.load()
    if observed()["jax"] not in data:
        pytest.skip(f"JAX {observed()['jax']} is not in the table, which has {', '.join(data)}")
    assert data[observed()["jax"]][operation.code] == found["cells"]


@needs_accelerator
@pytest.mark.parametrize("operation", every(but_blind=True))
def test_the_tracer_says_what_moved(operation: Operation) -> None:
    found = row(operation)
    assert found["moored"] == found["expected"]
    assert found["errors"] == []


def test_the_page_is_rendered_from_the_data() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.render(page.load())


def test_each_sentence_of_the_mental_model_is_borne_out_by_its_rows() -> None:
    assert page.broken_claims(page.load()) == []


def test_the_data_has_every_row_of_every_version_and_no_other() -> None:
    codes = [o.code for o in operations()]
    assert len(set(codes)) == len(codes)
    assert {version: list(cells) for version, cells in page.load().items()} == dict.fromkeys(
        page.load(), codes
    )


def test_a_claim_that_a_row_contradicts_is_found() -> None:
    data = page.load()
    data["0.10.2"]["c[3]"] = ["no", "default", "`c` to default"]
    (problem,) = page.broken_claims(data)
    assert problem.endswith("but JAX 0.10.2, c[3]: ['no', 'default', '`c` to default']")


def test_a_row_that_differs_is_found_and_one_without_its_library_is_not() -> None:
    data = {"1.0": {"u[3]": ["no", "default", "`u` to default"], "nnx": ["no", "home", "nothing"]}}
    here = {
        "jax": "1.0",
        "rows": [
            {"code": "u[3]", "cells": ["no", "home", "nothing"]},
            {"code": "nnx", "missing": "not installed"},
        ],
    }
    assert page.differences(data, here) == [
        "u[3]: ['no', 'default', '`u` to default'] in the table, ['no', 'home', 'nothing'] here"
    ]


def test_versions_that_differ_are_named_in_the_cell() -> None:
    code = next(iter(SECTIONS.values()))[0].code
    data = page.load()
    data["0.10.2"][code] = ["yes", "default", "nothing"]
    assert f"| `{code}` | **0.10:** yes<br>**0.11, 0.12:** no | default | nothing |" in page.render(data)
