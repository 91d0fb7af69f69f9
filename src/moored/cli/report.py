"""``moored report``: any report, from a saved recording."""

from __future__ import annotations

import io
import os
import sys
from functools import partial
from pathlib import Path
from typing import Literal

import click

from moored.cli.options import SHOW_LIBRARY
from moored.errors import InputError
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.report import json as report_json
from moored.report import text as report_text
from moored.rules.registry import explain
from moored.rules.settings import find_thresholds

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  moored trace --record run.moored train.py
  moored report run.moored
  moored report run.moored --format json -o run.json
"""


@click.command("report", epilog=_EXAMPLES)
@click.argument("recording", metavar="RUN.moored")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to report.",
)
@click.option("-o", "--output", metavar="FILE", help="Write the report there, and not to stdout.")
@click.option("--width", type=click.IntRange(40, 1000), metavar="N", help="Columns of the text report.")
@click.option("--show-library", is_flag=True, help=SHOW_LIBRARY)
def command(
    recording: str,
    format_: Literal["text", "json"],
    output: str | None,
    width: int | None,
    show_library: bool,
) -> None:
    """Report on a recorded run, here or on another machine; JAX is not needed."""
    if output is not None and os.path.realpath(output) == os.path.realpath(recording):
        raise InputError(f"-o {output}: that is the recording; name another file")
    run = Recording.load(recording)
    sources = Sources.of(run)
    findings = explain(run, sources, find_thresholds(_folder_of(run), os.curdir))
    render = partial(
        report_text.render, run, findings, width=width, sources=sources, show_library=show_library
    )
    if output is None and format_ == "text":
        render(file=sys.stdout)
        return
    text = report_json.render(run, findings)
    if format_ == "text":
        buffer = io.StringIO()
        render(file=buffer, color=False)
        text = buffer.getvalue()
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"-o {output}: can not be written: {error.strerror}") from None


def _folder_of(run: Recording) -> str:
    """Where the program was that was recorded."""
    script = run.header.argv[0] if run.header.argv[:1] not in ([], ["-m"]) else ""
    return os.path.dirname(os.path.join(run.header.cwd, script))
