"""The report for people, worst finding first: what it cost, the line, why, and what to write instead."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from moored.model.finding import Finding
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.report.totals import totals_line
from moored.report.unseen import unseen
from moored.report.words import GLUE, glued, harmless, headline
from moored.units import format_count, format_seconds

__all__ = ["render"]

_MAX_FINDINGS = 20  # with all their lines; what follows is counted
_MAX_NOTES = 5  # with one line each
_PLAIN_WIDTH = 120  # where the report goes to a file or a pipe
_COLORS = {"error": "bold red", "warning": "bold yellow", "note": "cyan"}
_BACKQUOTED = re.compile(r"`[^`]+`")


def render(
    recording: Recording,
    findings: Sequence[Finding],
    *,
    file: TextIO,
    width: int | None = None,
    color: bool | None = None,
    sources: Sources | None = None,
    show_library: bool = False,
) -> None:
    """Write the report of one run.

    Args:
        recording: What was observed.
        findings: What the rules made of it, worst first.
        file: Where to write; in one piece.
        width: Columns; where None those of the terminal, and 120 where ``file`` is none.
        color: Whether to colour; where None only on a terminal, and not with ``NO_COLOR`` set.
        sources: Where to find the program's lines; where None, its files as they were when it started.
        show_library: Name the installed package between a line and JAX, where there is one.

    >>> import sys
    >>> render(Recording(), [], file=sys.stdout, width=80)
    moored: nothing drifted. Watched no transfers.
    """
    is_terminal = _is_terminal(file)
    if color is None:
        color = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    if width is None and not is_terminal:
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdecimal() and int(columns) > 0 else _PLAIN_WIDTH
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=max(width, 40) if width is not None else _terminal_width(file),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        force_jupyter=False,
    )
    encoding = getattr(file, "encoding", None) or "utf-8"
    report = _Report(recording, findings, console, sources or Sources.of(recording), _carries(encoding))
    report.show_library = show_library
    report.write()
    text = "\n".join(line.rstrip() for line in buffer.getvalue().replace(GLUE, " ").split("\n"))
    file.write(text.encode(encoding, "backslashreplace").decode(encoding, "replace"))


def _is_terminal(file: TextIO) -> bool:
    try:
        return file.isatty()
    except (AttributeError, ValueError):
        return False


def _terminal_width(file: TextIO) -> int:
    try:
        return max(os.get_terminal_size(file.fileno()).columns, 40)
    except (OSError, ValueError, AttributeError):
        return 80


def _carries(encoding: str) -> bool:
    """Whether an encoding has the characters that lines are drawn with."""
    try:
        "│╰·".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class _Report:
    def __init__(
        self,
        recording: Recording,
        findings: Sequence[Finding],
        console: Console,
        sources: Sources,
        fine: bool,
    ) -> None:
        self.recording, self.findings, self.console, self.sources = recording, findings, console, sources
        self.bar, self.dot = ("│", " · ") if fine else ("|", " - ")
        self.show_library = False

    def write(self) -> None:
        serious = [f for f in self.findings if f.severity != "note"]
        notes = [f for f in self.findings if f.severity == "note"]
        for finding in serious[:_MAX_FINDINGS]:
            self.finding(finding)
        if (hidden := len(serious) - _MAX_FINDINGS) > 0:
            self.line(f"... and {format_count(hidden, 'more finding')}; --format json has them all", "dim")
            self.line("")
        for finding in notes[:_MAX_NOTES]:
            self.note(finding)
        if len(notes) > _MAX_NOTES:
            self.line(f"... and {format_count(len(notes) - _MAX_NOTES, 'more note')}", "dim")
        if notes:
            self.line("")
        self.console.print(
            self.hanging(
                Text(glued(totals_line(self.recording, self.findings)), style="bold" if serious else ""), "  "
            )
        )
        for remark in unseen(self.recording, sorted(self.sources.changed)):
            self.console.print(self.hanging(Text(glued(harmless(remark))), "  "))

    # -- one finding -----------------------------------------------------------------------

    def finding(self, f: Finding) -> None:
        style = _COLORS[f.severity]
        head = Text()
        head.append(harmless(f.site.text), style="bold")
        head.append("  ")
        head.append_text(_marked(harmless(headline(f, self.expression(f)))))
        self.console.print(self.hanging(head, "    "))
        facts = Text("  ")
        facts.append(f"{f.severity} {f.rule}", style=style)
        facts.append(f" {f.name}")
        if f.seconds is not None and f.seconds > 0:
            facts.append(f"{self.dot}{_said_seconds(f)}", style="")
        if self.show_library and f.library:
            facts.append(f"{self.dot}in {harmless(f.library)}", style="")
        self.console.print(facts)
        for row in self.source_lines(f, style):
            self.console.print(row, no_wrap=True, overflow="ignore", crop=False)
        self.labelled("why", _marked(harmless(f.cause)))
        if f.replacement is not None:
            where = f"after line {f.replacement_after}" if f.replacement_after is not None else "in its place"
            if f.origin is not None and f.origin.path != f.site.path:
                where += f" of {harmless(f.origin.path)}"
            # Never wrapped and never cut: it is there to be copied.
            row = Text()
            row.append("  write   ", style="bold green")
            row.append(harmless(f.replacement), style="green")
            self.console.print(row, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)
            self.labelled("", Text(where, style="dim"))
        advice = _beyond_replacement(f)
        if advice:
            self.labelled("fix" if f.replacement is None else "then", _marked(harmless(advice)))
        self.line("")

    def note(self, f: Finding) -> None:
        row = Text()
        row.append(f"note {f.rule}", style=_COLORS["note"])
        row.append(f"  {harmless(f.site.text)}  ", style="bold")
        row.append_text(_marked(harmless(headline(f, self.expression(f)))))
        if self.show_library and f.library:
            row.append(f" (in {harmless(f.library)})")
        self.console.print(self.hanging(row, "    "))

    def expression(self, f: Finding) -> str:
        module = self.sources.module(f.site.path)
        return module.expression_at(f.site) if module is not None else ""

    def source_lines(self, f: Finding, style: str) -> Iterator[Text]:
        """The line, and carets below its expression."""
        module = self.sources.module(f.site.path)
        line = module.line(f.site.line) if module is not None else ""
        if module is None or not line.strip():
            return
        indent = len(line) - len(line.lstrip())
        span = module.span_at(f.site)
        start, end = indent, len(line.rstrip())
        if span is not None and span[0] == f.site.line:
            data = line.encode()
            start = len(data[: span[2]].decode(errors="replace"))
            end = len(data[: span[3]].decode(errors="replace")) if span[1] == span[0] else end
        gutter = f"  {f.site.line:>5} {self.bar} "
        before, marked, after = (
            harmless(part) for part in (line[indent:start], line[start:end], line[end:].rstrip())
        )
        before, marked, after = _windowed(before, marked, after, self.console.width - len(gutter))
        yield Text.assemble((gutter, "dim"), before, (marked, "bold"), after)
        blank = " " * (len(gutter) - 2) + f"{self.bar} "
        carets = "^" * max(cell_len(marked), 1)
        yield Text.assemble((blank, "dim"), " " * cell_len(before), (carets, style))

    # -- layout ----------------------------------------------------------------------------

    def line(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style=style))

    def labelled(self, label: str, text: Text) -> None:
        row = Text()
        row.append(f"  {label:<8}", style="bold")
        row.append_text(text)
        self.console.print(self.hanging(row, " " * 10))

    def hanging(self, text: Text, indent: str) -> Text:
        """Text wrapped to the console, its further lines indented."""
        first = text.wrap(self.console, self.console.width)[0]
        rest = text[len(first.plain) :]
        while rest.plain.startswith(" "):
            rest = rest[1:]
        first.rstrip()
        for row in rest.wrap(self.console, self.console.width - len(indent)) if rest.plain else ():
            row.rstrip()
            first.append(f"\n{indent}")
            first.append_text(row)
        first.no_wrap, first.overflow = True, "ignore"
        return first


def _beyond_replacement(f: Finding) -> str:
    """The fix without its first sentence where that only says what the replacement line shows."""
    if f.replacement is None or f"`{f.replacement.strip()}`" not in f.fix:
        return f.fix
    head, _, rest = f.fix.partition(f"`{f.replacement.strip()}`")
    return "" if ". " in head else rest.partition(". ")[2]


def _said_seconds(f: Finding) -> str:
    seconds = format_seconds(f.seconds or 0.0)
    measured = {"placement-recompile": "compiling", "host-callback": "callbacks"}.get(f.kind, "waiting")
    return {
        "at least": f"at least {seconds} in these calls",
        "measured": f"{seconds} of {measured}, measured",
        "estimate": f"about {seconds}, estimated",
    }.get(f.seconds_is, seconds)


def _marked(text: str) -> Text:
    """Text with what is in backquotes set off."""
    text = glued(text)
    marked = Text(text)
    for found in _BACKQUOTED.finditer(text):
        marked.stylize(Style(bold=True), *found.span())
    return marked


def _windowed(before: str, marked: str, after: str, width: int) -> tuple[str, str, str]:
    """Cut a long source line so that its marked part shows."""
    if cell_len(before + marked + after) <= width:
        return before, marked, after
    if cell_len(marked) > width - 8:
        marked = marked[: max(width - 8, 4)] + "..."
        after = ""
    room = max(width - cell_len(marked), 0)
    if cell_len(before) > room - min(len(after), 8):
        keep = max(room - 3 - min(len(after), 8), 0)
        before = "..." + before[len(before) - keep :] if keep else "..."
    room = max(width - cell_len(before + marked), 0)
    if cell_len(after) > room:
        after = after[: max(room - 3, 0)] + ("..." if room >= 3 else "")
    return before, marked, after
