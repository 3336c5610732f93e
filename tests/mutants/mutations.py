"""Single changes of a Python source that a good test should notice.

What only tells people something is left alone: docstrings, annotations, logs, texts of errors, `__repr__`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

_COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Mod: "//"}
_TELLING = frozenset({"debug", "info", "warning", "error", "exception", "log"})
_TELLERS = frozenset({"log", "_log", "logger", "_logger"})
_COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith, ast.Match)

WEIGHTS = {
    "statement dropped": 4,
    "await dropped": 4,
    "raise dropped": 2,
    "return dropped": 2,
    "jump dropped": 1,
    "error raised": 3,
    "comparison": 3,
    "branch": 3,
    "constant": 2,
    "and/or": 2,
    "arithmetic": 1.5,
    "min/max": 1.5,
    "true/false": 1,
}
"""How often a kind is drawn where all of them are to be had."""


@dataclass(frozen=True)
class Mutation:
    kind: str
    line: int
    start: int
    """In bytes, as `end`."""
    end: int
    new: str

    def of(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def mutations(source: bytes) -> list[Mutation]:
    """All that can be made of this source; each leaves it well-formed."""
    found = _Mutations(source)
    found.visit(ast.parse(source))
    return found.made


def _tells(node: ast.expr) -> bool:
    """True for a call that writes a log line."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    base = node.func.value
    name = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
    return node.func.attr in _TELLING and (name in _TELLERS or node.func.attr != "error")


class _Mutations(ast.NodeVisitor):
    def __init__(self, source: bytes) -> None:
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._function = ""
        self.made: list[Mutation] = []

    # -- places

    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.lineno - 1] + node.col_offset, self._lines[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _replace(self, kind: str, node: ast.stmt | ast.expr, new: str) -> None:
        self.made.append(Mutation(kind, node.lineno, *self._span(node), new))

    def _drop(self, kind: str, node: ast.stmt) -> None:
        if self._function:
            self._replace(kind, node, "pass")

    # -- what is left alone

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in ("__repr__", "__str__"):
            return
        outside, self._function = self._function, node.name
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self._function = outside

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A text for people."""

    # -- statements

    def visit_Raise(self, node: ast.Raise) -> None:
        self._drop("raise dropped", node)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if not isinstance(call, ast.Call) or _tells(call):
            return
        self._drop("await dropped" if isinstance(node.value, ast.Await) else "statement dropped", node)
        self.visit(call)

    def visit_Assign(self, node: ast.Assign) -> None:
        kept = all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
        if kept and self._function != "__init__":
            self._drop("statement dropped", node)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._drop("statement dropped", node)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._drop("statement dropped", node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._drop("return dropped", node)
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._drop("jump dropped", node)

    def visit_Break(self, node: ast.Break) -> None:
        self._drop("jump dropped", node)

    def visit_If(self, node: ast.If) -> None:
        self._force(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._force(node.test)
        self.generic_visit(node)

    def _force(self, test: ast.expr) -> None:
        if self._function:
            self._replace("branch", test, f"(False and ({self._text(test)}))")
            self._replace("branch", test, f"(True or ({self._text(test)}))")

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        first = node.body[0]
        if not isinstance(first, ast.Raise) and not isinstance(first, _COMPOUND):
            start, _ = self._span(first)
            self.made.append(Mutation("error raised", node.lineno, start, start, "raise; "))
        for statement in node.body:
            self.visit(statement)

    # -- expressions

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            sign, other = _COMPARISONS[type(node.ops[0])]
            start, end = self._span(node.left)[1], self._span(node.comparators[0])[0]
            between = self._source[start:end].decode()
            if between.count(sign) == 1:
                self.made.append(Mutation("comparison", node.lineno, start, end, between.replace(sign, other)))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replace("comparison", node, f"bool({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = " or " if isinstance(node.op, ast.And) else " and "
        self._replace("and/or", node, f"({other.join(f'({self._text(value)})' for value in node.values)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = any(
            isinstance(side, ast.JoinedStr)
            or (isinstance(side, ast.Constant) and not isinstance(side.value, int | float))
            for side in (node.left, node.right)
        )
        if type(node.op) in _ARITHMETIC and not texts:
            start, end = self._span(node.left)[1], self._span(node.right)[0]
            sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}[type(node.op)]
            between = self._source[start:end].decode()
            if between.count(sign) == 1:
                new = between.replace(sign, _ARITHMETIC[type(node.op)])
                self.made.append(Mutation("arithmetic", node.lineno, start, end, new))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace("true/false", node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace("constant", node, str(node.value + 1))
            if node.value > 0:
                self._replace("constant", node, str(node.value - 1))

    def visit_Call(self, node: ast.Call) -> None:
        if _tells(node):
            return
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
            self._replace("min/max", node.func, "max" if node.func.id == "min" else "min")
        self.generic_visit(node)
