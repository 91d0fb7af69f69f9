"""The command line: one small module per command, imported when it is asked for.

A command is a module ``moored.cli.NAME`` that holds ``command: click.Command``; its docstring is its help.
A command that runs the user's program returns that run as a callable instead of starting it: it is
called when click is out of the way, so that no exception of the program meets click's handlers or ours.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata

import click

from moored import __version__
from moored.errors import MooredError

__all__ = ["COMMANDS", "group", "main"]

COMMANDS = ("bench", "trace", "report", "doctor")  # in the order in which a newcomer meets them

_INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended
_REFUSED = 2

_EXAMPLES = """\b
Examples:
  moored bench lookup                     the published experiment, on this machine
  moored trace train.py --epochs 1        run a program; see what moved, where, why
  moored trace --record run.moored x.py   keep everything that was seen
  moored report run.moored                any report, from a saved recording
  moored doctor                           devices, bandwidths, what moored can see here
"""


class _Commands(click.Group):
    """A group whose commands are imported when they are looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"moored.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's own, with each first sentence whole."""
        with formatter.section("Commands"):
            commands = [(name, self.get_command(ctx, name)) for name in COMMANDS]
            formatter.write_dl([(name, c.get_short_help_str(limit=200)) for name, c in commands if c])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            ctx.fail(f"There is no command {args[0]!r}; the commands are {', '.join(COMMANDS)}.")
        return super().resolve_command(ctx, args)


def _version_text() -> str:
    """The versions that a bug report needs; JAX's is read from its metadata, not by importing it."""
    try:
        jax = f"JAX {metadata.version('jax')}"
    except metadata.PackageNotFoundError:
        jax = "JAX is not installed"
    return f"moored {__version__} (Python {platform.python_version()}, {jax})"


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        click.echo(_version_text())
        ctx.exit()


@click.group(
    cls=_Commands,
    epilog=_EXAMPLES,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the versions of moored, Python and JAX, and exit.",
)
@click.pass_context
def group(ctx: click.Context) -> None:
    """Find, explain and prevent arrays that drift between devices in JAX programs."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        args: What follows ``moored``; ``sys.argv[1:]`` where None.

    Returns:
        0, the code that the command gave, or 2 for a refusal (bad usage, or a ``MooredError``), which is
        printed to stderr as one message.

    Raises:
        BaseException: whatever the user's own program raised under ``moored trace``, untouched.

    >>> main(["--version"])  # doctest: +ELLIPSIS
    moored ...
    0
    """
    try:
        result = _invoke(sys.argv[1:] if args is None else list(args))
        if sys.stdout is not None:  # closed by whoever started us (`>&-`)
            sys.stdout.flush()
    except click.exceptions.Exit as asked:
        return asked.exit_code
    except click.ClickException as error:
        return _refuse_usage(error)
    except MooredError as error:
        return _refuse(str(error))
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nothing more to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (KeyboardInterrupt, click.Abort):
        click.echo("moored: interrupted", err=True)
        return _INTERRUPTED
    if callable(result):
        result = result()
    return result if isinstance(result, int) else 0


def _invoke(args: list[str]) -> object:
    # Not group.main(): even with standalone_mode=False it turns Ctrl-C and broken pipes into its own.
    with group.make_context("moored", args) as ctx:
        return group.invoke(ctx)


def _refuse_usage(error: click.ClickException) -> int:
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    if ctx is None:
        return _refuse(error.format_message())
    click.echo(ctx.get_usage(), err=True)
    return _refuse(f"{error.format_message()}\nTry '{ctx.command_path} --help'.")


def _refuse(message: str) -> int:
    click.echo(f"moored: error: {message}", err=True)
    return _REFUSED
