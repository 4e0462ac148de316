"""Values of Python expressions that need no execution: literals, known names, arithmetic."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}

_MAX_TEXT = 10_000
"""Maximum letters of a text that is put together."""

_MAX_OPERAND = 1 << 48
"""Maximum of a number in arithmetic: settings are smaller, and larger powers take for ever."""


def literal(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression.

    Args:
        node: a constant, name, list, mapping, text with names in it, or arithmetic on numbers.
        names: values of names.

    Raises:
        ValueError: the value needs execution.

    >>> literal(ast.parse("[rows * 2**10, 'a']", mode="eval").body, {"rows": 4})
    [4096, 'a']
    """
    if isinstance(node, ast.Constant):
        value = node.value
        return value if value is None or isinstance(value, bool | int | float | str) else str(value)
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [literal(item, names) for item in node.elts]
    if isinstance(node, ast.Dict):
        return _mapping(zip(node.keys, node.values, strict=True), names)
    if isinstance(node, ast.JoinedStr):
        return _text("".join(str(literal(part, names)) for part in node.values))
    if isinstance(node, ast.FormattedValue) and node.format_spec is None:
        return literal(node.value, names)
    if isinstance(node, ast.UnaryOp):
        return _negated(node, names)
    if isinstance(node, ast.BinOp):
        return _computed(node, names)
    raise ValueError


def _text(text: str) -> str:
    """Return a text unless it is longer than any setting: names that join may double."""
    if len(text) > _MAX_TEXT:
        raise ValueError
    return text


def _mapping(pairs: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with the pairs that are literals."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        try:
            if key is None:  # **other
                result |= literal(value, names)
            else:
                result[str(literal(key, names))] = literal(value, names)
        except (TypeError, ValueError):
            continue
    return result


def _negated(node: ast.UnaryOp, names: Mapping[str, Any]) -> Any:
    value = literal(node.operand, names)
    if isinstance(node.op, ast.Not):
        return not value
    if isinstance(node.op, ast.USub) and isinstance(value, int | float):
        return -value
    raise ValueError


def _computed(node: ast.BinOp, names: Mapping[str, Any]) -> Any:
    """Return the result of arithmetic on small numbers, or of two texts joined."""
    first, second = literal(node.left, names), literal(node.right, names)
    if isinstance(first, str) and isinstance(second, str) and isinstance(node.op, ast.Add):
        return _text(first + second)
    compute = _OPERATORS.get(type(node.op))
    if compute is None or not all(type(value) in (int, float) for value in (first, second)):
        raise ValueError
    is_power = isinstance(node.op, ast.Pow | ast.LShift)
    if max(abs(first), abs(second)) > _MAX_OPERAND or (is_power and abs(second) > 64):
        raise ValueError
    try:
        return compute(first, second)
    except (ArithmeticError, TypeError) as error:
        raise ValueError from error
