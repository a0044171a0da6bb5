"""How each constraint of `inspan_core.constraints` is checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from inspan_core.constraints import Constraint, HeaderMap, HttpUrl, Text, Whole
from inspan_core.faults import Fault, Faults, fault

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")

URL_LENGTH = 8192
HEADERS_LIMIT = 100
HEADERS_LENGTH = 64 * 1024
"""Of all names and values together. Most servers take 8 to 16 KiB."""


def constraint_check(constraint: Constraint) -> Callable[[Any], None]:
    """What raises `Faults` for a value of the right type that breaks the constraint."""
    match constraint:
        case Text():
            return _text_check(constraint)
        case Whole():
            return _whole_check(constraint)
        case HttpUrl():
            return _check_url
        case HeaderMap():
            return _check_headers


def number_of_text(value: Any, constraint: Constraint) -> Any:
    """The number that a string of decimal digits stands for, where it allows it; else the value."""
    if not (isinstance(constraint, Whole) and constraint.numeric_text and type(value) is str):
        return value
    if not re.fullmatch(r"[0-9]{1,9}", value):
        raise fault("int_parsing", "must be a whole number", value)
    return int(value)


def _whole_check(constraint: Whole) -> Callable[[int], None]:
    def check(number: int) -> None:
        if constraint.minimum is not None and number < constraint.minimum:
            raise fault("greater_than_equal", f"must be {constraint.minimum} or more", number)
        if constraint.maximum is not None and number > constraint.maximum:
            raise fault("less_than_equal", f"must be {constraint.maximum} or less", number)

    return check


def _text_check(constraint: Text) -> Callable[[str], None]:
    pattern = None if constraint.pattern is None else re.compile(constraint.pattern.removesuffix("$") + r"\Z")
    reserved = None if constraint.reserved is None else re.compile(constraint.reserved)

    def check(text: str) -> None:
        if len(text) < constraint.min_length:
            raise fault("string_too_short", f"must have at least {constraint.min_length} characters", text)
        if constraint.max_length is not None and len(text) > constraint.max_length:
            raise fault("string_too_long", f"must have at most {constraint.max_length} characters", text)
        if pattern is not None and not pattern.search(text):
            raise fault("string_pattern_mismatch", f"must match {constraint.pattern}", text)
        if reserved is not None and reserved.search(text):
            raise fault("value_error", constraint.reserved_reason, text)

    return check


def _check_url(text: str) -> None:
    if len(text) > URL_LENGTH:
        raise fault("string_too_long", f"must have at most {URL_LENGTH} characters", text)
    try:
        parts = urlsplit(text)
        host = parts.hostname
        _ = parts.port
    except ValueError as error:
        raise fault("url_parsing", f"must be a URL: {error}", text) from error
    if parts.scheme not in ("http", "https"):
        raise fault("url_scheme", "must be an http or https URL", text)
    if not host or any(character <= " " or character == "\x7f" for character in text):
        raise fault("url_parsing", "must be a URL with a host and without blanks", text)


def _check_headers(headers: Mapping[str, str]) -> None:
    if len(headers) > HEADERS_LIMIT:
        raise fault("too_long", f"must have at most {HEADERS_LIMIT} entries", None)
    if sum(len(name) + len(value) for name, value in headers.items()) > HEADERS_LENGTH:
        raise fault("too_long", f"must have at most {HEADERS_LENGTH} characters in all", None)
    faults: list[Fault] = []
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            faults.append(("value_error", (name,), "must have a name of token characters", name))
        if not _HEADER_VALUE.fullmatch(value):
            faults.append(("value_error", (name,), "must not hold control characters", None))
    if faults:
        raise Faults(faults)
