"""What the two rules on reads share: which of them a line belongs to, and what its reads cost."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from moored.model.module import Module, Sources
from moored.model.recording import Recording, Transfer
from moored.rules.evidence import Evidence, gather
from moored.rules.thresholds import Thresholds

__all__ = ["collection", "is_elementwise", "is_kept_on_host", "reads", "runs_once", "share_of_run"]

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PASSING_ON = {"enumerate", "reversed", "sorted", "zip"}  # iterate over what they are given
_GATHERING = {
    "array", "asarray", "average", "fsum", "max", "mean", "median", "min", "nanmean", "percentile",
    "quantile", "stack", "std", "stdev", "sum", "var",
}  # fmt: skip
_Loop = ast.For | ast.AsyncFor | ast.comprehension


def reads(recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Evidence]:
    """Reads that the program did not ask for by name, by line and by what is read."""
    yield from gather(
        recording,
        sources,
        limits,
        lambda t: t.direction == "d2h" and not t.explicit and t.reason == "read",
        noise=0,
    )


def is_elementwise(evidence: Evidence) -> bool:
    """Whether a line reads the scalars of one collection, each by itself, and not one value a step.

    So it is where a line that runs only once reads many, and where the source shows that what is read is
    an element of what a loop or comprehension goes over, or that a list of scalars is gathered in one call.
    """
    limits, module = evidence.limits, evidence.module
    if evidence.count < limits.repeated_reads or any(
        t.nbytes > limits.noise * t.count for t in evidence.rows
    ):
        return False
    if module is None:
        return False
    if runs_once(evidence):
        return evidence.count >= limits.same_line_reads
    expression = module.expression_node(evidence.site)
    if expression is None:
        return False
    return _element_of(module, expression) is not None or _gathers_a_list(module, expression)


def collection(evidence: Evidence) -> str:
    """The user's words for what the scalars are elements of; empty where not certain."""
    module = evidence.module
    expression = module.expression_node(evidence.site) if module is not None else None
    if module is None or expression is None:
        return ""
    if _gathers_a_list(module, expression) or runs_once(evidence):
        return evidence.words
    node = _element_of(module, expression)
    return module.source_of(node) if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) else ""


def runs_once(evidence: Evidence) -> bool:
    """Whether nothing in the source repeats the line: no function around it, no loop, no comprehension."""
    module, line = evidence.module, evidence.site.line
    return module is not None and not module.in_function(line) and module.enclosing_loop(line) is None


def is_kept_on_host(evidence: Evidence) -> bool:
    """Whether the program committed what is read to the CPU, while its computations run elsewhere."""
    return all(_is_kept_on_host(row, evidence.recording) for row in evidence.rows)


def _is_kept_on_host(row: Transfer, recording: Recording) -> bool:
    is_elsewhere = recording.header.default_device not in (None, row.source)
    return bool(row.array.committed) and row.source.startswith("cpu") and is_elsewhere


def share_of_run(evidence: Evidence) -> float | None:
    """The share of the run that these reads took, where it is worth an error."""
    limits = evidence.limits
    waited, run = evidence.read_seconds or 0.0, evidence.recording.header.seconds
    if run <= 0 or waited < limits.read_wait_seconds or waited < limits.read_share * run:
        return None
    return waited / run


def _element_of(module: Module, expression: ast.expr) -> ast.expr | None:
    """The ``x`` of ``float(v)`` in a loop over ``x`` that binds ``v``, or of ``float(x[i])`` in any loop."""
    for loop in _loops_around(module, expression):
        bound = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
        for node in ast.walk(expression):
            if isinstance(node, ast.Name) and node.id in bound and isinstance(node.ctx, ast.Load):
                holder = module.parents.get(node)
                if isinstance(holder, ast.Subscript):
                    if holder.slice is node and _is_constant(holder.value, loop):
                        return holder.value
                elif _is_collection(loop.iter):
                    return loop.iter
    return None


def _is_constant(base: ast.expr, loop: _Loop) -> bool:
    """Whether the loop itself does not make anew what it indexes."""
    while isinstance(base, (ast.Subscript, ast.Attribute)):
        base = base.value
    if not isinstance(base, ast.Name):
        return False
    body = loop.body if isinstance(loop, (ast.For, ast.AsyncFor)) else []
    return not any(
        isinstance(n, ast.Name) and n.id == base.id and not isinstance(n.ctx, ast.Load)
        for statement in body
        for n in ast.walk(statement)
    )


def _is_collection(node: ast.expr) -> bool:
    """Whether what a loop goes over is there already, and is not made step by step by a call."""
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in ("items", "values") and isinstance(node.func, ast.Attribute) and not node.args:
            return _is_collection(node.func.value)
        plain = isinstance(node.func, ast.Name) and name in _PASSING_ON
        return plain and bool(node.args) and all(_is_collection(a) for a in node.args)
    return isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.List, ast.Tuple))


def _loops_around(module: Module, expression: ast.expr) -> Iterator[_Loop]:
    """The loops and comprehensions that repeat an expression, innermost first, within its function."""
    inner: ast.AST = expression
    node: ast.AST | None = expression
    while node is not None:
        if isinstance(node, _COMPREHENSIONS):
            yield from reversed(node.generators)
        elif isinstance(node, (ast.For, ast.AsyncFor)) and inner is not node.iter:
            yield node
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        inner, node = node, module.parents.get(node)


def _gathers_a_list(module: Module, expression: ast.expr) -> bool:
    """``np.mean(losses)`` where ``losses`` is a list, however often the line runs."""
    if not isinstance(expression, ast.Call) or not expression.args:
        return False
    name = expression.func.id if isinstance(expression.func, ast.Name) else ""
    full = module.dotted(expression.func)
    if name in ("max", "min", "sum"):
        pass
    elif not full.startswith(("numpy.", "statistics.", "math.")) or full.rpartition(".")[2] not in _GATHERING:
        return False
    value = expression.args[0]
    if isinstance(value, (ast.List, ast.Tuple, *_COMPREHENSIONS)):
        return True
    return isinstance(value, ast.Name) and _is_list(module, value.id)


def _is_list(module: Module, name: str) -> bool:
    """Whether the file makes a list of that name, or appends to it."""
    for node in module.parents:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if node.func.attr in ("append", "extend") and isinstance(owner, ast.Name) and owner.id == name:
                return True
        is_made = isinstance(node, ast.Assign) and isinstance(node.value, (ast.List, ast.ListComp))
        if is_made and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):  # type: ignore[attr-defined]
            return True
    return False
