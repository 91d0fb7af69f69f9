"""Which of a line's own words moved: from the path of a leaf to the text that the user wrote.

JAX names a leaf by its path in the call that ran (``"[0]['w']"``). The user wrote an
expression. Going from one to the other is certain only where the call that ran is the one
on the line; everywhere else the answer is silence.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable
from typing import Protocol

from moored.model.site import Site

__all__ = ["Operands", "event_expression", "split_path"]

_STEP = re.compile(r"\[('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|-?\d+)\]|\.([A-Za-z_]\w*)")
_READERS = {"bool", "complex", "float", "format", "index", "int", "len", "repr", "str"}
_READING_METHODS = {"item", "tolist", "__array__", "tobytes", "copy_to_host_async"}
_HOST_ATTRIBUTES = {"dtype", "itemsize", "nbytes", "ndim", "shape", "size"}
_ARRAY_METHODS_OF_AT = {"add", "apply", "divide", "get", "max", "min", "multiply", "power", "set", "subtract"}
# What JAX runs to prepare one operand of something else: its position 0 says nothing of the user's.
_UNARY = {"broadcast_in_dim", "convert_element_type", "copy", "expand_dims", "ravel", "reshape", "squeeze"}
# Of what JAX runs for x[i]: what takes the array first, and what only prepares the index.
_INDEXING = {"dynamic_index_in_dim", "dynamic_slice", "gather", "rev", "rewriting_take", "slice", "take"}
_INDEX_WORK = {"add", "less", "lt", "select_n"}
# What JAX runs for a binary operator, with both operands in their order.
_OPERATORS = {
    "add", "bitwise_and", "bitwise_or", "bitwise_xor", "div", "divide", "dot", "floor_divide", "left_shift",
    "matmul", "mod", "mul", "multiply", "pow", "power", "remainder", "right_shift", "sub", "subtract",
    "true_divide",
}  # fmt: skip
_UNPACKING = {"concatenate", "stack"}  # run with the elements of their first argument as operands
_PRIMARY = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Tuple, ast.List, ast.Dict)


def split_path(argument: str) -> tuple[list[str], str]:
    """Split a leaf's path into its steps, and what could not be read.

    >>> split_path("[0]['w'].b"), split_path("[1][<flat index 0>]")
    ((['[0]', "['w']", '.b'], ''), (['[1]'], '[<flat index 0>]'))
    """
    steps, at = [], 0
    while found := _STEP.match(argument, at):
        steps.append(found.group())
        at = found.end()
    return steps, argument[at:]


def event_expression(node: ast.AST | None) -> ast.expr | None:
    """The expression in a statement that its own events (iteration, truth tests) belong to."""
    if isinstance(node, ast.expr):
        return node
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return node.iter
    if isinstance(node, (ast.While, ast.If, ast.Assert)):
        return node.test
    if isinstance(node, ast.With) and len(node.items) == 1:
        return node.items[0].context_expr
    if isinstance(node, (ast.Return, ast.Expr)):
        return node.value
    return None


def _plain(name: str) -> str:
    return name.strip("_")


def _is_candidate(node: ast.AST) -> bool:
    """Whether an expression may hold an array: not a literal, not ``x.shape``."""
    if isinstance(node, (ast.Constant, ast.JoinedStr, ast.Lambda)):
        return False
    if isinstance(node, ast.UnaryOp):
        return _is_candidate(node.operand)
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(_is_candidate(e) for e in node.elts)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
        return node.value.attr not in _HOST_ATTRIBUTES
    return not (isinstance(node, ast.Attribute) and node.attr in _HOST_ATTRIBUTES)


class Text(Protocol):
    """What ``Operands`` needs of a module."""

    @property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Node to the node that holds it."""

    def node_at(self, site: Site) -> ast.AST | None:
        """The innermost node of a site."""

    def source_of(self, node: ast.AST) -> str:
        """The text of a node."""

    def dotted(self, node: ast.AST | None) -> str:
        """The full name behind an imported one."""


class Operands:
    """Resolves leaves for one module."""

    def __init__(self, module: Text) -> None:
        self.module = module
        self._from_host = False

    def words(
        self, site: Site, argument: str, api: str, function: str | None, from_host: bool = False
    ) -> str:
        """See ``Module.argument_at``."""
        self._from_host = from_host
        node = self.module.node_at(site)
        if node is None:
            node = self._only_node(site, api, function) if site.column is None else None
        if node is None:
            return ""
        steps, _ = split_path(argument)
        if argument and not steps:
            return ""
        found = self._operand(node, steps, _plain(api), function)
        return self._text(found, steps[1:]) if found is not None else ""

    def _only_node(self, site: Site, api: str, function: str | None) -> ast.AST | None:
        """Without columns: the one node of the line that the event can belong to."""
        name = _plain(api)
        wanted = {name, _plain(function or "")} - {"", "jit"}
        found: list[ast.AST] = []
        for node in self.module.parents:
            if getattr(node, "lineno", None) != site.line:
                continue
            if name == "getitem":
                is_meant = isinstance(node, ast.Subscript)
            else:
                is_meant = isinstance(node, ast.Call) and _callee(node) in wanted
            if is_meant:
                found.append(node)
        return found[0] if len(found) == 1 else None

    # -- which operand ---------------------------------------------------------------------

    def _operand(self, node: ast.AST, steps: list[str], api: str, function: str | None) -> ast.AST | None:
        if isinstance(node, (ast.For, ast.AsyncFor)):
            return node.iter
        if isinstance(node, ast.JoinedStr):
            return self._only(v.value for v in node.values if isinstance(v, ast.FormattedValue))
        if isinstance(node, ast.FormattedValue):
            return node.value
        expression = event_expression(node)
        if api == "bool" and not isinstance(node, ast.Call):
            return self._tested(expression)
        if isinstance(node, ast.AugAssign):
            return self._of_two(node.target, node.value, steps, function)
        if isinstance(expression, ast.Call):
            return self._of_call(expression, steps, api, function)
        if isinstance(expression, ast.Subscript):
            return self._of_subscript(expression, steps, function)
        if isinstance(expression, ast.BinOp):
            return self._of_two(expression.left, expression.right, steps, function)
        if isinstance(expression, ast.Compare) and len(expression.comparators) == 1:
            # Reflected comparisons swap their operands: only a literal on one side makes it certain.
            return self._only([expression.left, *expression.comparators])
        if isinstance(expression, ast.UnaryOp):
            return expression.operand
        if isinstance(expression, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            return self._only(g.iter for g in expression.generators) if api == "iter" else None
        parent = self.module.parents.get(expression) if expression is not None else None
        is_iterated = (
            isinstance(parent, (ast.For, ast.AsyncFor, ast.comprehension)) and parent.iter is expression
        )
        if is_iterated or isinstance(expression, ast.Name):
            return expression
        return expression.value if isinstance(expression, ast.Attribute) and steps[:1] == ["[0]"] else None

    @staticmethod
    def _only(nodes: Iterable[ast.AST]) -> ast.AST | None:
        candidates = [n for n in nodes if _is_candidate(n)]
        return candidates[0] if len(candidates) == 1 else None

    def _tested(self, test: ast.expr | None) -> ast.AST | None:
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test = test.operand
        if isinstance(test, ast.IfExp):
            return self._tested(test.test)
        if isinstance(test, (ast.BoolOp, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)):
            return None
        return None if isinstance(test, ast.Compare) and len(test.ops) > 1 else test

    def _of_two(
        self, left: ast.expr, right: ast.expr, steps: list[str], function: str | None
    ) -> ast.AST | None:
        is_ordered = function is None or _plain(function) in _OPERATORS
        if not is_ordered or steps[:1] not in (["[0]"], ["[1]"]):
            return None if self._from_host else self._only([left, right])
        return left if steps[0] == "[0]" else right

    def _of_subscript(self, node: ast.Subscript, steps: list[str], function: str | None) -> ast.AST | None:
        index = None if isinstance(node.slice, (ast.Tuple, ast.Slice)) else node.slice
        if not steps:
            return node.value
        if self._from_host:
            return index  # what is indexed is an array of JAX's own, or JAX would not have run
        name = _plain(function or "gather")
        if name in _INDEX_WORK:
            return index
        if name in _INDEXING:
            return node.value if steps[0] == "[0]" else index
        return node.value if index is None or not _is_candidate(index) else None

    def _of_call(self, node: ast.Call, steps: list[str], api: str, function: str | None) -> ast.AST | None:
        on_array = isinstance(node.func, ast.Attribute) and not self.module.dotted(node.func)
        if not steps:
            return self._read_or_put(node, on_array)
        if on_array and isinstance(node.func, ast.Attribute):
            receiver = node.func.value
            of_at = receiver.value if isinstance(receiver, ast.Subscript) else None
            if (
                isinstance(of_at, ast.Attribute)
                and of_at.attr == "at"
                and node.func.attr in _ARRAY_METHODS_OF_AT
            ):
                return of_at.value if steps[0] == "[0]" else None
        found: ast.AST | None = None
        if _plain(function or "") in _UNPACKING and _callee(node) in _UNPACKING:
            operands = node.args[0] if node.args else None
            return _inside_literal(operands, steps[0]) if operands is not None else None
        if self._is_the_call(node, api, function):
            found = self._at_position(node, steps[0], self._offset(node, api, function))
            if found is not None and _is_candidate(found):
                return found
        if api in ("", "jit") or self._from_host:
            return None
        values = [*node.args, *(k.value for k in node.keywords)]
        if on_array and isinstance(node.func, ast.Attribute):
            values.append(node.func.value)
        return self._only(values)

    def _read_or_put(self, node: ast.Call, on_array: bool) -> ast.AST | None:
        """What a read or a put took: ``float(x)``, ``x.item()``, ``device_put(x)``, ``print(x)``."""
        name = _callee(node)
        if on_array and name in _READING_METHODS and isinstance(node.func, ast.Attribute):
            return node.func.value
        if name in ("device_put", "device_get", "asarray", "array") and node.args:
            return None if isinstance(node.args[0], ast.Starred) else node.args[0]
        if name in _READERS and len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
            return node.args[0]
        named = {k.arg: k.value for k in node.keywords if k.arg}
        if name == "device_put" and "x" in named:
            return named["x"]
        if on_array:
            return None  # the receiver may be what was read
        return self._only([*node.args, *named.values()])

    def _is_the_call(self, node: ast.Call, api: str, function: str | None) -> bool:
        """Whether what JAX ran has the argument list that the line shows."""
        callee = _callee(node)
        if function is None or _plain(function) == _plain(callee):
            return True
        if function in _UNARY:
            return False
        if api not in ("", "jit"):
            return _plain(function) in (api, f"reduce_{api}")
        return not self._is_indirect(node.func, callee)

    def _is_indirect(self, func: ast.expr, callee: str) -> bool:
        """Whether a call may reach a jitted function with other arguments, as through ``partial``."""
        if not callee or self.module.dotted(func).startswith(("functools.", "itertools.", "operator.")):
            return True
        if isinstance(func, ast.Name) and hasattr(builtins, callee):
            return True
        return any(
            isinstance(node, ast.Assign)
            and any(_last_name(t) == callee for t in node.targets)
            and any(_last_name(n) == "partial" for n in ast.walk(node.value))
            and not _is_partial_of_jit(node.value)
            for node in self.module.parents
        )

    def _offset(self, node: ast.Call, api: str, function: str | None) -> int | None:
        """How many leading positions are not in the parentheses, None if unknown.

        A method's ``self`` has no position: the tracer names it ``"['self']"``. It takes one in the
        parentheses of ``Model.step(model, x)``, hence -1 there.
        """
        if function == "__call__":
            return 0
        if isinstance(node.func, ast.Name) or self.module.dotted(node.func):
            return 0
        if not isinstance(node.func, ast.Attribute):
            return 0
        name = node.func.attr
        if api == _plain(name):
            return 1  # a method of the array's own, as in x.sum()
        offsets = set()
        for child, parent in self.module.parents.items():
            if isinstance(child, ast.FunctionDef) and child.name == name and isinstance(parent, ast.ClassDef):
                names = [a.arg for a in (*child.args.posonlyargs, *child.args.args)]
                if any(_last_name(d) == "staticmethod" for d in child.decorator_list):
                    offsets.add(0)
                elif names[:1] == ["self"]:
                    offsets.add(-1 if self._is_class(node.func.value) else 0)
                else:
                    offsets.add(1)
            elif isinstance(child, ast.Assign):
                offsets |= {0 for t in child.targets if isinstance(t, ast.Attribute) and t.attr == name}
        if not offsets and not node.args and not node.keywords:
            return 1
        return offsets.pop() if len(offsets) == 1 else None

    def _is_class(self, node: ast.AST) -> bool:
        """Whether a name is that of a class of this file."""
        return isinstance(node, ast.Name) and any(
            isinstance(n, ast.ClassDef) and n.name == node.id for n in self.module.parents
        )

    def _at_position(self, node: ast.Call, step: str, offset: int | None) -> ast.AST | None:
        key = ast.literal_eval(step[1:-1]) if step.startswith("[") else None
        if isinstance(key, str):
            named = {k.arg: k.value for k in node.keywords}
            if key != "self" or key in named:
                return named.get(key)
            if offset is not None and offset < 0:
                key = -1  # before position 0, and in the parentheses
            else:
                return node.func.value if isinstance(node.func, ast.Attribute) else node.func
        if not isinstance(key, int) or offset is None:
            return None
        if key < offset:
            return node.func.value if isinstance(node.func, ast.Attribute) else node.func
        for index, value in enumerate(node.args):
            if isinstance(value, ast.Starred):
                last = index == len(node.args) - 1
                return value if last else None
            if index == key - offset:
                return value
        return None

    # -- its text --------------------------------------------------------------------------

    def _text(self, node: ast.AST, steps: list[str]) -> str:
        """The text of an operand and of the steps into it, through literal containers."""
        steps = list(steps)
        while steps:
            inner = _inside_literal(node, steps[0])
            if inner is None:
                break
            node = inner
            steps.pop(0)
        text = self.module.source_of(node)
        if not text or not steps or isinstance(node, ast.Starred):
            return text
        if isinstance(node, (ast.Tuple, ast.List, ast.Dict)):
            return (
                ""  # a literal whose part could not be told: naming the whole would be no word for the leaf
            )
        return (text if isinstance(node, _PRIMARY) else f"({text})") + "".join(steps)


def _inside_literal(node: ast.AST, step: str) -> ast.AST | None:
    key = ast.literal_eval(step[1:-1]) if step.startswith("[") else None
    if isinstance(node, (ast.Tuple, ast.List)) and isinstance(key, int) and 0 <= key < len(node.elts):
        return None if any(isinstance(e, ast.Starred) for e in node.elts[: key + 1]) else node.elts[key]
    if isinstance(node, ast.Dict) and None not in node.keys:
        pairs = zip(node.keys, node.values, strict=True)
        found = [v for k, v in pairs if isinstance(k, ast.Constant) and k.value == key and key is not None]
        return found[0] if len(found) == 1 else None
    return None


def _is_partial_of_jit(node: ast.AST) -> bool:
    """``partial(jax.jit, ...)(f)``, which has the arguments of ``f``."""
    inner = node.func if isinstance(node, ast.Call) else None
    return (
        isinstance(inner, ast.Call)
        and _callee(inner) == "partial"
        and bool(inner.args)
        and _last_name(inner.args[0]) in ("jit", "pjit", "pmap")
    )


def _callee(node: ast.Call) -> str:
    return _last_name(node.func) or ""


def _last_name(node: ast.AST | None) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None
