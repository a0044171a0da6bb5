"""JSON in and out of bytes, bounded in size and depth, and nothing in it that is not JSON."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Literal, NoReturn

from inspan_core.errors import WireError
from inspan_core.json_shapes import is_array, is_object, is_tuple

MAX_DEPTH = 100
"""Deepest nesting taken: real requests stay below 20, and Python's own recursion limit is 1,000."""

INPUT_TEXT_LIMIT = 200
INPUT_ITEM_LIMIT = 10
INPUT_DEPTH_LIMIT = 4
INPUT_BITS_LIMIT = 64

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

Surrogates = Literal["refuse", "replace"]


def problem(kind: str, loc: tuple[str | int, ...], message: str, value: Any) -> dict[str, Any]:
    """One entry of an error list, with a bounded copy of the offending value."""
    return {"type": kind, "loc": ["body", *loc], "msg": message, "input": bounded(value)}


def bounded(value: Any, depth: int = 0) -> Any:
    """A copy of `value` that is small enough to be sent back: long text and long lists are cut."""
    if isinstance(value, str):
        return value if len(value) <= INPUT_TEXT_LIMIT else value[:INPUT_TEXT_LIMIT] + "..."
    if is_object(value):
        if depth == INPUT_DEPTH_LIMIT:
            return {"...": len(value)}
        first = list(value.items())[:INPUT_ITEM_LIMIT]
        return {bounded(key): bounded(item, depth + 1) for key, item in first}
    if is_array(value) or is_tuple(value):
        if depth == INPUT_DEPTH_LIMIT:
            return ["..."] if value else []
        return [bounded(item, depth + 1) for item in value[:INPUT_ITEM_LIMIT]]
    if isinstance(value, int) and value.bit_length() > INPUT_BITS_LIMIT:
        return f"<whole number of {value.bit_length()} bits>"
    if isinstance(value, bool | int | float) or value is None:
        return value
    return f"<{type(value).__name__}>"


def parse_json(
    data: bytes, limit_bytes: int, *, max_depth: int = MAX_DEPTH, lone_surrogates: Surrogates = "refuse"
) -> Any:
    """Parse one JSON document.

    Args:
        data: UTF-8 bytes. A repeated key keeps its last value.
        limit_bytes: The most bytes that are taken.
        max_depth: The most levels of arrays and objects.
        lone_surrogates: A string that holds half of a surrogate pair cannot be written anywhere:
            refuse the document, or put U+FFFD in its place.

    Raises:
        WireError: Too large, too deep, not UTF-8, not JSON (NaN and infinities are not), or a lone
            surrogate.
    """
    if len(data) > limit_bytes:
        raise WireError([problem("too_large", (), f"is {len(data)} bytes, more than {limit_bytes}", None)])
    try:
        text = data.decode("utf-8")
        value = _DECODE(text)
    except UnicodeDecodeError as error:
        raise WireError([problem("json_invalid", (error.start,), "is not UTF-8 text", {})]) from error
    except json.JSONDecodeError as error:
        raise WireError([problem("json_invalid", (error.pos,), f"is not JSON: {error.msg}", {})]) from error
    except RecursionError as error:
        raise WireError([_too_deep(max_depth)]) from error
    except ValueError as error:
        raise WireError([problem("json_invalid", (), f"is not JSON: {error}", {})]) from error
    if data.count(b"[") + data.count(b"{") > max_depth and _is_deeper(data, max_depth):
        raise WireError([_too_deep(max_depth)])
    if b"\\u" in data and _has_surrogate(plain := json.dumps(value, ensure_ascii=False)):
        if lone_surrogates == "refuse":
            message = "holds half of a surrogate pair, which is not text"
            raise WireError([problem("string_unicode", (), message, None)])
        value = json.loads(plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return value


def canonical_text(value: Any) -> str:
    """JSON text that is equal for equal values: sorted keys, no blanks, non-ASCII as it is."""
    return _CANONICAL(value)


def _too_deep(max_depth: int) -> dict[str, Any]:
    return problem("too_deep", (), f"is nested deeper than {max_depth} levels", None)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def _is_deeper(document: bytes, max_depth: int) -> bool:
    """Whether valid JSON is nested deeper, by its brackets: many small values are slow to walk."""
    brackets = _STRING.sub(b"", document).translate(_BRACKETS, _NO_BRACKETS)
    for _ in range(max_depth):
        if not brackets:
            return False
        # The innermost pairs go: what is left is one level lower.
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


# Made once: `json.loads` and `json.dumps` make one for each call that asks for anything special.
_DECODE = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).decode
_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
).encode
