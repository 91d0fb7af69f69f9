"""``moored trace``: run a program and see what moved, where, why, and what to write instead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal, cast

import click

from moored.cli.options import SHOW_LIBRARY
from moored.diagnose.options import Options
from moored.diagnose.outfile import OutFile
from moored.diagnose.program import locate_module, locate_script
from moored.diagnose.run import TracedRun
from moored.errors import InputError
from moored.model.finding import SEVERITIES, Severity
from moored.rules.settings import find_thresholds
from moored.trace import simulate
from moored.units import parse_bytes

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  moored trace train.py --epochs 1
  moored trace --simulate -o report.txt -m mypackage.train
  moored trace --record run.moored --fail-on '1 MB' train.py
"""
_ACCELERATOR = "accel"  # what --simulate without a number asks for


class _TraceCommand(click.Command):
    """Reads options up to the program's name; what follows belongs to the program, options and all."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        taking_value = {
            name
            for parameter in self.params
            if isinstance(parameter, click.Option) and not parameter.is_flag
            for name in parameter.opts
        }
        return super().parse_args(ctx, list(_ended_by_program(args, taking_value)))


def _ended_by_program(args: list[str], taking_value: set[str]) -> Iterator[str]:
    """The same arguments, with ``--`` where the program's own begin, and each option's value spelt out."""
    rest = iter(args)
    for arg in rest:
        if arg == "--" or not arg.startswith("-") or arg == "-":
            yield from ["--", *([] if arg == "--" else [arg]), *rest]
        elif arg == "--simulate":
            yield f"--simulate={_ACCELERATOR}"
        elif arg.startswith("-m"):
            yield arg
            if arg != "-m":
                yield from ["--", *rest]
            elif (module := next(rest, None)) is not None:
                yield from [module, "--", *rest]
        else:
            yield arg
            if arg in taking_value:
                yield from [value] if (value := next(rest, None)) is not None else []


class _FailOn(click.ParamType[Any]):
    name = "severity or bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Severity | int:
        if value in SEVERITIES:
            return cast("Severity", value)
        try:
            return parse_bytes(value)
        except InputError:
            self.fail(f"{value!r} is not error, warning or note, and no number of bytes ('1 MB')", param, ctx)


class _Simulate(click.ParamType[Any]):
    name = "n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        if value == _ACCELERATOR:
            return _ACCELERATOR
        if isinstance(value, str) and value.isdecimal():
            return int(value)
        self.fail(f"{value!r} is not a number of CPU devices", param, ctx)


@click.command(
    "trace",
    cls=_TraceCommand,
    epilog=_EXAMPLES,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does.")
@click.option("-o", "--output", metavar="FILE", help="Write the report there, and not to stderr.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to report.",
)
@click.option("--record", metavar="FILE", help="Keep what was seen, for `moored report`.")
@click.option(
    "--fail-on",
    type=_FailOn(),
    metavar="WHAT",
    help="Exit with 3 if there is a finding at least this severe (error, warning, note), or if findings "
    "above note moved more than this many bytes ('1 MB'). A program that fails keeps its own exit code.",
)
@click.option(
    "--simulate",
    "simulated",
    type=_Simulate(),
    metavar="[=N]",
    help="Run on a simulated accelerator; with =N on N CPU devices.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing unless there is a finding above note.")
@click.option("--show-library", is_flag=True, help=SHOW_LIBRARY)
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT] [ARGS]...")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    module: str | None,
    output: str | None,
    format_: Literal["text", "json"],
    record: str | None,
    fail_on: Severity | int | None,
    simulated: str | int | None,
    quiet: bool,
    show_library: bool,
    program: tuple[str, ...],
) -> TracedRun:
    """Run a program; see what moved, where, why, and what to write instead.

    SCRIPT is a Python file, or a folder or zip file with a __main__.py. The program runs as it would
    without moored: same output, same exit code. The report follows on stderr.
    """
    if module is None and not program:
        raise click.UsageError("name the program: a script, or -m and a module", ctx)
    located = locate_module(module, program) if module is not None else locate_script(program[0], program[1:])
    options = Options(
        format=format_,
        output=OutFile(output, "-o") if output is not None else None,
        record=OutFile(record, "--record") if record is not None else None,
        fail_on=fail_on,
        simulated=simulated is not None,
        quiet=quiet,
        show_library=show_library,
        thresholds=find_thresholds(*located.roots, os.curdir),
    )
    _refuse_to_overwrite(located.path, options)
    if simulated is not None:
        simulate.prepare(None if simulated == _ACCELERATOR else int(simulated))
    return TracedRun(located, options)


def _refuse_to_overwrite(program: str, options: Options) -> None:
    """A file has one content: neither the program nor the other file may be lost to a report."""
    files = [file for file in (options.record, options.output) if file is not None]
    for file, option in ((options.record, "--record"), (options.output, "-o")):
        if file is not None and program and file.is_at(program):
            raise InputError(f"{option} {file.name}: that is the program; nothing was run. Name another file")
    if len(files) == 2 and files[0].is_at(files[1].path):
        raise InputError(
            f"-o {files[1].name}: --record writes there already; nothing was run. Name another file"
        )
