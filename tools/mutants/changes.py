"""Small changes of a Python source, one at a time: what a mutation tester tries.

A change is a span of the source and what stands there instead. Not changed: docstrings, annotations, decorators,
`__all__`, f-strings, calls of the module's logger, and the arguments of an exception that is raised (a sentence).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Change", "changes_of"]

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of one file."""

    path: str
    """Relative to the root of the repository, with slashes."""

    function: str
    """Qualified name of what it stands in; "<module>" outside of functions and classes."""

    line: int
    start: int
    """Offset in the source's UTF-8 bytes."""

    end: int
    before: str
    after: str
    at_import: bool
    """Whether the line runs when the module is imported: a constant, a field's default, a parameter's default."""

    @property
    def name(self) -> str:
        """What names it for good: it does not move with the lines above."""
        return f"{self.path}::{self.function}: {self.before} -> {self.after}"

    def applied(self, source: bytes) -> bytes:
        """The source with this change."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def changes_of(path: str, source: bytes) -> list[Change]:
    """All changes of one module, in the order of its lines; none for one that does not parse."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return finder.found


class _Finder(ast.NodeVisitor):
    def __init__(self, path: str, source: bytes) -> None:
        self.found: list[Change] = []
        self._path = path
        self._source = source
        lines = source.splitlines(keepends=True)
        self._offsets = [0]
        for line in lines:
            self._offsets.append(self._offsets[-1] + len(line))
        self._scope: list[str] = []
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._scope.append(node.name)
        for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
            self.visit(default)
        self._depth += 1
        for statement in node.body:
            self.visit(statement)
        self._depth -= 1
        self._scope.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - ast's own name

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        if not any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Call) or _logs(node.value):
            return
        if self._depth:
            self._add(node, "pass")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add(node, "pass")
        self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        pass  # its arguments are a sentence; the condition above it is changed

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_If(self, node: ast.If) -> None:
        if not _is_type_checking(node.test):
            self._negate(node.test)
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._add(condition, "True")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for number, operator in enumerate(node.ops):
            other = list(node.ops)
            other[number] = _COMPARED[type(operator)]()
            self._add(node, ast.unparse(ast.Compare(left=node.left, ops=other, comparators=node.comparators)))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for number in range(len(node.values)):
            left = node.values[:number] + node.values[number + 1 :]
            self._add(node, ast.unparse(left[0] if len(left) == 1 else ast.BoolOp(op=node.op, values=left)))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = _COMPUTED.get(type(node.op))
        words = any(isinstance(side, ast.Constant | ast.JoinedStr) and not _is_number(side) for side in _sides(node))
        if other is not None and not words:
            self._add(node, ast.unparse(ast.BinOp(left=node.left, op=other(), right=node.right)))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _logs(node):
            return
        if isinstance(node.func, ast.Name) and (other := _CALLED.get(node.func.id)) is not None:
            self._add(node.func, other)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, str(not node.value))
        elif isinstance(node.value, int):
            self._add(node, str(node.value + 1))
        elif isinstance(node.value, float):
            self._add(node, repr(node.value * 10 if node.value else 1.0))

    def _negate(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Compare):  # those are changed by their operator
            self._add(test, f"not ({ast.unparse(test)})")

    def _add(self, node: ast.expr | ast.stmt, after: str) -> None:
        if node.end_lineno is None or node.end_col_offset is None:
            return
        start = self._offsets[node.lineno - 1] + node.col_offset
        end = self._offsets[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(self._source[start:end].decode().split())
        self.found.append(
            Change(
                path=self._path,
                function=".".join(self._scope) or "<module>",
                line=node.lineno,
                start=start,
                end=end,
                before=before,
                after=after if isinstance(node, ast.stmt) or after.isidentifier() else f"({after})",
                at_import=not self._depth,
            )
        )


def _sides(node: ast.BinOp) -> Iterator[ast.expr]:
    yield node.left
    yield node.right


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _logs(node: ast.Call) -> bool:
    return (
        isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name) and node.func.value.id == "log"
    )


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"
