"""Source text as evidence: the user's own words for what a site did, or silence.

A ``Module`` answers questions about one file: which expression a site covers, which of its
operands moved, under which ``default_device`` a line runs. Every answer is either certain
or empty. ``Sources`` finds and caches modules and never raises: a file that is gone,
binary, huge, or newer than the run has no module.
"""

from __future__ import annotations

import ast
import io
import linecache
import os
import re
import tokenize
import warnings
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from moored.model import operands
from moored.model.site import Site

if TYPE_CHECKING:
    from moored.model.recording import Recording

__all__ = ["Block", "Module", "Sources"]

_MAX_FILE_BYTES = 4_000_000
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Names that nobody gives to anything else, for files that get them by ``from common import *``.
_USUAL_NAMES = {"jax": "jax", "jnp": "jax.numpy", "lax": "jax.lax", "np": "numpy", "numpy": "numpy"}
_Span = tuple[int, int, int, int]  # line, end line, column, end column


class Block(NamedTuple):
    """A ``with jax.default_device(EXPR)`` block around a line.

    Attributes:
        device: Source text of ``EXPR``.
        line: First line of the ``with`` statement.
        end_line: Its last line.
        straight: Only ``with`` statements stand between it and the line, so that what the line
            binds is bound when the block ends.
    """

    device: str
    line: int
    end_line: int
    straight: bool


class Sources:
    """Finds modules by path; each file is read at most once.

    Args:
        root: Folder that relative paths start from; the current one where None.
        not_after: Seconds since the epoch; a file changed after that has no module, because
            its lines are not those that ran.

    >>> Sources().module("/no/such/file.py") is None
    True
    """

    def __init__(self, root: str | None = None, *, not_after: float | None = None) -> None:
        self._root = root or ""
        self._not_after = not_after
        self._modules: dict[str, Module | None] = {}
        self.changed: set[str] = set()

    @classmethod
    def of(cls, recording: Recording) -> Sources:
        """The sources of a recorded run, as they were when it started."""
        return cls(recording.header.cwd or None, not_after=recording.header.started or None)

    def module(self, path: str) -> Module | None:
        """The module at ``path``, or None where its text can not be had."""
        if path not in self._modules:
            text = self._read(path)
            self._modules[path] = None if text is None else Module(path, text)
        return self._modules[path]

    def _read(self, path: str) -> str | None:
        full = os.path.join(self._root, path)
        try:
            if not os.path.isfile(full):
                # Notebook cells and other generated code live in linecache only.
                return "".join(linecache.getlines(path)) if path in linecache.cache else None
            status = os.stat(full)
            if status.st_size > _MAX_FILE_BYTES:
                return None
            if self._not_after is not None and status.st_mtime > self._not_after:
                self.changed.add(path)
                return None
            with open(full, "rb") as file:
                data = file.read(_MAX_FILE_BYTES + 1)
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            text = data.decode(encoding).removeprefix("\ufeff")
        except (OSError, ValueError, SyntaxError, LookupError):
            return None
        return None if "\0" in text else text


class Module:
    r"""The text of one file, its tree, and what its lines say.

    >>> module = Module("a.py", "for row in data:\n    total += f(row)\n")
    >>> module.enclosing_loop(2), module.enclosing_loop(1), module.indentation(2)
    (1, 1, '    ')
    """

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        # Lines as Python's tokenizer counts them; splitlines() would also break at form feeds.
        self.lines: list[str] = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    @cached_property
    def tree(self) -> ast.Module | None:
        """The syntax tree, None where the text is not Python."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Node to the node that holds it, outermost first."""
        found: dict[ast.AST, ast.AST] = {}
        queue: list[ast.AST] = [self.tree] if self.tree is not None else []
        for node in queue:
            for child in ast.iter_child_nodes(node):
                # Operators and contexts are shared singletons: as keys they would mean nothing.
                if not isinstance(
                    child, (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)
                ):
                    found[child] = node
                    queue.append(child)
        return found

    @cached_property
    def imports(self) -> dict[str, str]:
        """Local name to dotted name, over all imports of the file."""
        found: dict[str, str] = {}
        for node in self.parents:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    found[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return found

    def dotted(self, node: ast.AST | None) -> str:
        """The full name behind ``jnp.take``: ``"jax.numpy.take"``; empty where it is no imported name."""
        tail: list[str] = []
        while isinstance(node, ast.Attribute):
            tail.append(node.attr)
            node = node.value
        name = node.id if isinstance(node, ast.Name) else ""
        base = self.imports.get(name) or _USUAL_NAMES.get(name, "")
        return ".".join([base, *reversed(tail)]) if base else ""

    def spelling(self, package: str) -> str:
        """How this file spells an imported package (``import jax as j``: ``"j"``)."""
        return next((name for name, full in self.imports.items() if full == package), package)

    # -- nodes -----------------------------------------------------------------------------

    @cached_property
    def _by_span(self) -> dict[_Span, list[ast.AST]]:
        found: dict[_Span, list[ast.AST]] = {}
        for node in self.parents:
            span = _span(node)
            if span is not None:
                found.setdefault(span, []).append(node)
        return found

    def node_at(self, site: Site) -> ast.AST | None:
        """The innermost node of exactly the site's span, or the smallest expression around it.

        Some instructions carry the span of a whole statement (the test of an ``if`` on Python
        3.11, the iteration of a ``for``), so the node may be one.
        """
        if site.column is None or site.end_column is None:
            return None
        span = (site.line, site.end_line or site.line, site.column, site.end_column)
        exact = self._by_span.get(span, [])
        strings = [n for n in exact if isinstance(n, ast.JoinedStr)]
        if strings:
            return strings[0]  # on 3.11 its parts claim the same span
        if exact:
            return exact[-1]
        around = [
            (s[1] - s[0], s[3] - s[2], node)
            for s, nodes in self._by_span.items()
            if s[:1] + s[2:3] <= span[:1] + span[2:3] and s[1:2] + s[3:4] >= span[1:2] + span[3:4]
            for node in nodes
            if isinstance(node, ast.expr)
        ]
        return min(around, key=lambda found: found[:2])[2] if around else None

    def source_of(self, node: ast.AST) -> str:
        """The text of a node, on one line."""
        span = _span(node)
        if span is None:
            return ""
        line, end_line, column, end_column = span
        rows = [row.encode() for row in self.lines[line - 1 : end_line]]
        if len(rows) != end_line - line + 1:
            return ""
        rows[-1] = rows[-1][:end_column]
        rows[0] = rows[0][column:]
        return re.sub(r"\s*\n\s*", " ", b"\n".join(rows).decode(errors="replace"))

    def expression_node(self, site: Site) -> ast.expr | None:
        """The expression that a site covers; for a statement, the one that its event belongs to."""
        return operands.event_expression(self.node_at(site))

    def expression_at(self, site: Site) -> str:
        """Source text of the innermost expression of the site's span, else the stripped line."""
        node = self.expression_node(site)
        text = self.source_of(node) if node is not None else ""
        return text or self.line(site.line).strip()

    def span_at(self, site: Site) -> tuple[int, int, int, int] | None:
        """(line, end line, column, end column) of what ``expression_at`` gives, columns in UTF-8 bytes."""
        node = self.expression_node(site)
        return None if node is None else _span(node)

    def argument_at(
        self,
        site: Site,
        argument: str,
        api: str,
        function: str | None = None,
        *,
        from_host: bool = False,
    ) -> str:
        """The user's own words for the leaf that moved, empty where that is not certain.

        Args:
            site: Where it moved.
            argument: The leaf's path in the call that JAX ran, ``"[0]['w']"``; empty for puts and reads.
            api: What the user's line called.
            function: What JAX ran. Where given, positions count only if it is what the line calls:
                a library in between has an argument list of its own.
            from_host: A host value moved. It may be a constant of JAX's own, so that "there is only
                one candidate" proves nothing.

        >>> Module("a.py", "acc = step(acc, batch)").argument_at(Site("a.py", 1, 1, 6, 22), "[1]", "jit")
        'batch'
        """
        return operands.Operands(self).words(site, argument, api, function, from_host)

    # -- lines -----------------------------------------------------------------------------

    def line(self, number: int) -> str:
        """The text of one line, counted from 1; empty outside the file."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def indentation(self, line: int) -> str:
        """The white space that a line starts with."""
        text = self.line(line)
        return text[: len(text) - len(text.lstrip())]

    @cached_property
    def _statements(self) -> list[ast.stmt]:
        return [node for node in self.parents if isinstance(node, ast.stmt)]

    def statement_at(self, line: int) -> ast.stmt | None:
        """The innermost statement that covers a line."""
        covering = [s for s in self._statements if s.lineno <= line <= (s.end_lineno or s.lineno)]
        return covering[-1] if covering else None  # parents are listed before their children

    def statement_span(self, line: int) -> tuple[int, int] | None:
        """First and last line of the innermost statement that covers a line."""
        statement = self.statement_at(line)
        return None if statement is None else (statement.lineno, statement.end_lineno or statement.lineno)

    def around(self, line: int) -> Iterator[ast.AST]:
        """The statement that covers a line and what holds it, innermost first, up to its function."""
        node: ast.AST | None = self.statement_at(line)
        while node is not None and not isinstance(node, _FUNCTIONS):
            yield node
            node = self.parents.get(node)

    def in_function(self, line: int) -> bool:
        """Whether a line belongs to a function's body, and so may run many times without a loop."""
        node: ast.AST | None = self.statement_at(line)
        while node is not None:
            node = self.parents.get(node)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return True
        return False

    def may_assign(self, name: str, line: int) -> bool:
        r"""Whether a name may be bound anew at a line.

        Not so a global that a function only reads: bound there, it would be the function's own, and
        unbound where it is read.

        >>> module = Module("a.py", "def f(x):\n    y = 1\n    g(x, y, w)\nw = 2")
        >>> [module.may_assign(name, 3) for name in "xyw"], module.may_assign("w", 4)
        ([True, True, False], True)
        """
        node: ast.AST | None = self.statement_at(line)
        while node is not None and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node = self.parents.get(node)
        if node is None:
            return True
        return any(
            (isinstance(n, ast.arg) and n.arg == name)
            or (isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load))
            or (isinstance(n, ast.Global | ast.Nonlocal) and name in n.names)
            for n in ast.walk(node)
        )

    def assignment_at(self, line: int) -> str | None:
        """The single target (a name, or an attribute) that the statement on a line assigns."""
        statement = self.statement_at(line)
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target: ast.expr = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target = statement.target
        else:
            return None
        return self.source_of(target) if isinstance(target, (ast.Name, ast.Attribute)) else None

    def enclosing_loop(self, line: int) -> int | None:
        """Line of the innermost ``for``, ``while`` or comprehension that repeats a line."""
        statement = self.statement_at(line)
        if statement is not None and not isinstance(
            statement, (*_LOOPS, ast.With, ast.AsyncWith, ast.If, ast.Try)
        ):
            inner = [
                n.lineno
                for n in ast.walk(statement)
                if isinstance(n, _COMPREHENSIONS) and n.lineno <= line <= (n.end_lineno or n.lineno)
            ]
            if inner and not isinstance(statement, _FUNCTIONS):
                return max(inner)
        loop = self.loop_at(line)
        return None if loop is None else loop.lineno

    def loop_at(self, line: int) -> ast.For | ast.AsyncFor | ast.While | None:
        """The innermost loop statement that repeats a line, within its function."""
        inner: ast.AST | None = None
        for node in self.around(line):
            if isinstance(node, _LOOPS) and inner not in node.orelse:
                return node
            inner = node
        return None

    def throttled_at(self, line: int) -> bool:
        r"""Whether a line runs only every so many steps: an ``if`` tests a remainder, or a loop comes first.

        >>> source = "for epoch in e:\n    for step in s:\n        loss = f(step)\n    print(loss)"
        >>> [Module("a.py", source).throttled_at(line) for line in (3, 4)]
        [False, True]
        """
        for node in self.around(line):
            if isinstance(node, _LOOPS):
                inner = (n for child in node.body for n in ast.walk(child) if isinstance(n, _LOOPS))
                return any((loop.end_lineno or line) < line for loop in inner)
            if isinstance(node, ast.If) and any(isinstance(n, ast.Mod) for n in ast.walk(node.test)):
                return True
        return False

    def default_device_block(self, line: int) -> Block | None:
        """The innermost ``with jax.default_device(EXPR)`` whose body holds a line, in its function."""
        straight = True
        inner: ast.AST | None = None
        for node in self.around(line):
            if isinstance(node, (ast.With, ast.AsyncWith)) and inner is not None:
                for item in reversed(node.items):
                    call = item.context_expr
                    if (
                        isinstance(call, ast.Call)
                        and self.dotted(call.func) == "jax.default_device"
                        and call.args
                    ):
                        end = node.end_lineno or node.lineno
                        return Block(self.source_of(call.args[0]), node.lineno, end, straight)
            elif inner is not None:
                straight = False
            inner = node
        return None

    def default_device_at(self, line: int) -> str | None:
        """The text of the device in the innermost ``with jax.default_device(EXPR)`` around a line."""
        block = self.default_device_block(line)
        return None if block is None else block.device


def _span(node: ast.AST) -> _Span | None:
    end_line = getattr(node, "end_lineno", None)
    end_column = getattr(node, "end_col_offset", None)
    if end_line is None or end_column is None:
        return None
    return node.lineno, end_line, node.col_offset, end_column  # type: ignore[attr-defined]
