"""Integer expressions over named sizes, as written in launch plans.

Grammar: integers, names, `+ - * // %`, unary minus, `ceildiv(a, b)`, `min(...)`, `max(...)`. The text is parsed with
`ast` and walked by a white list; nothing is ever evaluated as Python.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

MAX_LENGTH = 400
MAX_DEPTH = 32
MAX_MESSAGE = 600
LIMIT = 2**63

Expression = int | str


class ExpressionError(ValueError):
    """The text is no valid size expression, or its value is not a 64-bit integer. Long messages are cut."""

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} ...")


def evaluate(expression: Expression, sizes: Mapping[str, int]) -> int:
    """Value of an expression under the given sizes. Raises ExpressionError with what is wrong."""
    if isinstance(expression, bool) or not isinstance(expression, int | str):
        raise ExpressionError(f"{expression!r} is neither an integer nor an expression")
    if isinstance(expression, int):
        return _bounded(expression, str(expression))
    if len(expression) > MAX_LENGTH:
        raise ExpressionError(f"expression of {len(expression)} characters; at most {MAX_LENGTH}")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{expression!r} is not an expression: {error}") from None
    return _value(tree.body, sizes, 0)


def ceildiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}


def _value(node: ast.expr, sizes: Mapping[str, int], depth: int) -> int:
    if depth > MAX_DEPTH:
        raise ExpressionError(f"expression nested deeper than {MAX_DEPTH}")
    match node:
        case ast.Constant(value=bool()):
            raise ExpressionError("booleans are not sizes")
        case ast.Constant(value=int(value)):
            result = value
        case ast.Name(id=name):
            if name not in sizes:
                raise ExpressionError(f"unknown size {name!r}; known: {sorted(sizes)}")
            result = sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_value(operand, sizes, depth + 1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            a, b = _value(left, sizes, depth + 1), _value(right, sizes, depth + 1)
            if b == 0 and isinstance(op, ast.FloorDiv | ast.Mod):
                raise ExpressionError(f"division by zero in {ast.unparse(node)}")
            result = _BINARY[type(op)](a, b)
        case ast.Call(func=ast.Name(id=function), args=arguments, keywords=[]):
            result = _call(function, [_value(a, sizes, depth + 1) for a in arguments])
        case _:
            raise ExpressionError(f"{ast.unparse(node)!r} is not allowed in a size expression")
    return _bounded(result, ast.unparse(node))


def _call(function: str, values: list[int]) -> int:
    if function == "ceildiv" and len(values) == 2:
        if values[1] == 0:
            raise ExpressionError("division by zero in ceildiv")
        return ceildiv(*values)
    if function in ("min", "max") and values:
        return min(values) if function == "min" else max(values)
    raise ExpressionError(f"{function} with {len(values)} arguments is not allowed")


def _bounded(value: int, text: str) -> int:
    if not -LIMIT <= value < LIMIT:
        raise ExpressionError(f"{text[:80]} does not fit in 64 bits")
    return value
