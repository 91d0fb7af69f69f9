"""Exact source lines to write, where the source makes them certain."""

from __future__ import annotations

import ast

from moored.model.module import Module, Sources
from moored.rules.base import Edit, Evidence
from moored.rules.wording import device_code, put_on

__all__ = ["is_refilled", "keep_home", "move_before_loop", "put_before_loop"]

_DISPLAYS = (ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp)
_Loop = ast.For | ast.AsyncFor | ast.While


def keep_home(evidence: Evidence, sources: Sources, *, at_home: bool) -> Edit | None:
    """The line that commits an array once, after the statement that made it.

    Args:
        evidence: What drifts; its origin must be known.
        sources: Where to find the line that made it.
        at_home: Commit it to where it is; else to where it keeps being copied to.
    """
    origin = evidence.origin
    module = sources.module(origin.path) if origin is not None else None
    if origin is None or module is None:
        return None
    name = _made_at(module, origin.line, evidence.words)
    span = module.statement_span(origin.line)
    if name is None or span is None:
        return None
    row, header = evidence.first, evidence.recording.header
    block = module.default_device_block(origin.line)
    if at_home:
        device = block.device if block is not None else device_code(row.source, header, module)
    else:
        device = device_code(row.target, header, module)
    if device is None:
        return None
    after, like = span[1], span[0]
    used_inside = (
        block is not None
        and evidence.site.path == origin.path
        and block.line <= evidence.site.line <= block.end_line
    )
    if block is not None and block.straight and block.end_line == span[1] and not used_inside:
        like = block.line
    elif block is not None and block.line == span[0]:
        return None  # the block's body stands on its own line: there is no line to write below it
    return Edit(f"{module.indentation(like)}{name} = {put_on(name, device, module)}", after)


def _made_at(module: Module, line: int, words: str) -> str | None:
    """The name that the statement on a line gives to the array (or list of arrays) that it makes."""
    name = module.assignment_at(line)
    if name is None:
        return None
    if words == name or words.startswith((f"{name}[", f"{name}.")):
        return name
    value = getattr(module.statement_at(line), "value", None)
    if isinstance(value, _DISPLAYS):
        return name
    is_jax = isinstance(value, ast.Call) and module.dotted(value.func).startswith("jax.")
    return name if is_jax else None


def put_before_loop(evidence: Evidence) -> Edit | None:
    """``name = jax.device_put(name)`` before the loop that keeps uploading ``name``."""
    module, name = evidence.module, evidence.words
    if module is None or not name.isidentifier():
        return None
    loop = _outermost_constant(module, evidence.site.line, {name})
    if loop is None or not module.may_assign(name, loop.lineno):
        return None
    if _may_change(module, loop, name, evidence.site.line):
        return None
    return Edit(f"{module.indentation(loop.lineno)}{name} = {put_on(name, None, module)}", loop.lineno - 1)


def move_before_loop(evidence: Evidence) -> Edit | None:
    """The line's own put, ``t = jax.device_put(table)``, before the loop that repeats it."""
    module, site = evidence.module, evidence.site
    statement = module.statement_at(site.line) if module is not None else None
    if module is None or not isinstance(statement, ast.Assign) or statement.lineno != statement.end_lineno:
        return None
    if not isinstance(statement.targets[0], ast.Name) or len(statement.targets) != 1:
        return None
    if module.node_at(site) is not statement.value:
        return None
    used = {n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name)}
    loop = _outermost_constant(module, site.line, used)
    if loop is None or any(_may_change(module, loop, name, site.line) for name in used):
        return None
    if _stores(loop, statement.targets[0].id) != 1:
        return None
    text = module.line(site.line).strip()
    return Edit(f"{module.indentation(loop.lineno)}{text}", loop.lineno - 1)


def is_refilled(evidence: Evidence) -> bool:
    """Whether the loop writes into the object that keeps moving: the same object, but new values."""
    module = evidence.module
    loop = module.loop_at(evidence.site.line) if module is not None else None
    return loop is not None and evidence.words.isidentifier() and _writes_into(loop, evidence.words)


def _outermost_constant(module: Module, line: int, names: set[str]) -> _Loop | None:
    """The outermost loop around a line in which none of the names is bound."""
    found: _Loop | None = None
    loop = module.loop_at(line)
    while loop is not None and not any(_stores(loop, name) for name in names):
        found = loop
        outer: ast.AST | None = loop
        loop = None
        while (outer := module.parents.get(outer) if outer is not None else None) is not None:
            if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                break
            if isinstance(outer, (ast.For, ast.AsyncFor, ast.While)):
                loop = outer
                break
    return found


def _stores(loop: _Loop, name: str) -> int:
    return sum(
        isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load) for n in ast.walk(loop)
    )


def _is(node: ast.AST | None, name: str) -> bool:
    """Whether an expression is a name, or an item or attribute of it."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return isinstance(node, ast.Name) and node.id == name


def _is_description(node: ast.AST) -> bool:
    """Whether an expression only tells of an array, as ``x.shape`` does."""
    return isinstance(node, ast.Attribute) and node.attr in ("dtype", "nbytes", "ndim", "shape", "size")


def _writes_into(loop: _Loop, name: str) -> bool:
    for node in ast.walk(loop):
        if isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            if _is(node, name):
                return True
        elif isinstance(node, ast.AugAssign) and _is(node.target, name):
            return True
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if any(k.arg == "out" and _is(k.value, name) for k in node.keywords):
                return True
            if called in ("copyto", "readinto", "put", "place") and node.args and _is(node.args[0], name):
                return True
            in_place = called in ("fill", "sort", "partition") and isinstance(node.func, ast.Attribute)
            if in_place and _is(node.func.value, name):  # type: ignore[attr-defined]
                return True
    return False


def _may_change(module: Module, loop: _Loop, name: str, line: int) -> bool:
    """Whether the loop may change what a name holds: it writes into it, or hands it to other calls."""
    if _writes_into(loop, name):
        return True
    statement = module.statement_at(line)
    inside = {id(n) for n in ast.walk(statement)} if statement is not None else set()
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and id(node) not in inside:
            values = [*node.args, *(k.value for k in node.keywords)]
            if isinstance(node.func, ast.Attribute):
                values.append(node.func.value)
            # A module (np.sum) is no object that a call could change.
            if any(_is(v, name) and not _is_description(v) for v in values) and name not in module.imports:
                return True
    return False
