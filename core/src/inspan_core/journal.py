"""Events as JSON and back: what a journal keeps of a session.

A session is the fold of its events (`inspan_core.machine.fold`). Events hold digests and findings, never
contents or secrets, so a journal of them holds none either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, get_type_hints

import attrs

from inspan_core.errors import WireError
from inspan_core.events import EVENT_TYPES, Event

EVENTS: Mapping[str, type] = {kind.__name__: kind for kind in EVENT_TYPES}

Reader = Callable[[Any], Any]


def encode_event(event: Event) -> dict[str, Any]:
    """The event as a JSON object: its type's name under ``event``, and its fields.

    Returns:
        For example ``{"event": "Staged", "at": 12.5, "order": 3}``.
    """
    kind = type(event)
    encoded: dict[str, Any] = {"event": kind.__name__}
    for name in _READERS[kind]:
        value = getattr(event, name)
        encoded[name] = value.value if isinstance(value, Enum) else value
    return encoded


def decode_event(value: Mapping[str, Any]) -> Event:
    """Read what `encode_event` wrote.

    Raises:
        WireError: It names no event, or its fields do not fit.
    """
    kind = EVENTS.get(str(value.get("event")))
    if kind is None:
        raise _misfit("event", "expected the name of an event", value.get("event"))
    readers = _READERS[kind]
    if set(value) != {"event", *readers}:
        raise _misfit(kind.__name__, f"expected exactly the fields {', '.join(readers)}", sorted(value))
    fields = {}
    for name, read in readers.items():
        try:
            fields[name] = read(value[name])
        except ValueError as error:
            raise _misfit(f"{kind.__name__}.{name}", str(error), value[name]) from error
    event: Event = kind(**fields)
    return event


def _misfit(place: str, message: str, value: Any) -> WireError:
    return WireError(
        [{"type": "journal", "loc": ["journal", place], "msg": message, "input": repr(value)[:200]}]
    )


def _reader(hint: Any) -> Reader:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    allowed = {
        float: (float, int),
        int: (int,),
        bool: (bool,),
        str: (str,),
        int | None: (int, type(None)),
        str | None: (str, type(None)),
    }[hint]

    def read(value: Any) -> Any:
        if type(value) not in allowed:  # True is no number here
            raise ValueError(f"expected {hint}")
        return value

    return read


_READERS: Mapping[type, Mapping[str, Reader]] = {
    kind: {field.name: _reader(get_type_hints(kind)[field.name]) for field in attrs.fields(kind)}
    for kind in EVENT_TYPES
}
