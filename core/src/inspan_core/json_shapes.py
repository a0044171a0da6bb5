"""What a parsed JSON value is, so that type checkers know what is in it."""

from collections.abc import Sequence
from typing import Any, TypeGuard


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether it is a JSON object."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether it is a JSON array."""
    return isinstance(value, list)


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    """Whether it is an array that was made a tuple."""
    return isinstance(value, tuple)


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether it is a list, a tuple or the like; a text is none."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
