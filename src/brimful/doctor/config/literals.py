"""Values of Python expressions that need no execution: literals, known names, sums of integers."""

import ast
from collections.abc import Mapping
from typing import Any

_METHODS = {
    ast.Add: "__add__",
    ast.Sub: "__sub__",
    ast.Mult: "__mul__",
    ast.FloorDiv: "__floordiv__",
    ast.Pow: "__pow__",
}

_LIMIT = 1 << 48
"""A number in a sum is below it: settings are smaller, and larger powers take for ever."""


def literal(node: ast.expr | None, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression.

    Args:
        node: a constant, name, list, mapping, or a sum of positive integers.
        names: values of names.

    Raises:
        ValueError: the value needs execution.

    >>> literal(ast.parse("[rows * 2**10, 'a']", mode="eval").body, {"rows": 4})
    [4096, 'a']
    """
    if isinstance(node, ast.Constant):
        value = node.value
        return value if isinstance(value, bool | int | float | None) else str(value)
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [literal(item, names) for item in node.elts]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {str(literal(key, names)): literal(value, names) for key, value in pairs}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = literal(node.operand, names)
        if isinstance(value, int | float):
            return -value
    if isinstance(node, ast.BinOp) and (method := _METHODS.get(type(node.op))):
        first, second = literal(node.left, names), literal(node.right, names)
        limit = 65 if method == "__pow__" else _LIMIT
        if type(first) is type(second) is int and abs(first) < _LIMIT and 0 < second < limit:
            return getattr(first, method)(second)
    raise ValueError
