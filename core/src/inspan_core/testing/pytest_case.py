"""Write a story down as a pytest case, to be pasted into a file of tests."""

import re
from collections.abc import Sequence
from enum import Enum

from attrs import fields

from inspan_core.events import Event

_WORD = re.compile(r"[a-z0-9]+")
_LONGEST_NAME = 60


def pytest_case(reason: str, events: Sequence[Event]) -> str:
    """Write a case that fails for as long as the story breaks a promise.

    Args:
        reason: What is wrong, for the test's name and docstring.
        events: The story, in real numbers.

    Returns:
        A module of Python source with one test.
    """
    names = {type(event).__name__ for event in events}
    names.update(_enums(events))
    lines = [
        f"from inspan_core.events import {', '.join(sorted(names))}",
        "from inspan_core.testing import SETTINGS, fault_of",
        "",
        "",
        f"def test_{_name(reason)}() -> None:",
        "    story = (",
        *(f"        {_call(event)}," for event in events),
        "    )",
        "    assert fault_of(story, SETTINGS) is None",
    ]
    return "\n".join(lines) + "\n"


def _source(value: object) -> str:
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    return repr(value)


def _call(event: Event) -> str:
    given = (f"{each.name}={_source(getattr(event, each.name))}" for each in fields(type(event)))
    return f"{type(event).__name__}({', '.join(given)})"


def _enums(events: Sequence[Event]) -> set[str]:
    values = (getattr(event, each.name) for event in events for each in fields(type(event)))
    return {type(value).__name__ for value in values if isinstance(value, Enum)}


def _name(reason: str) -> str:
    words = "_".join(_WORD.findall(reason.lower()))
    return words[:_LONGEST_NAME].rstrip("_") or "story"
