"""Events as JSON and back: what a journal keeps of a session.

A session is the fold of its events (`inspan_core.machine.fold`). Events hold digests and findings, never
contents or secrets, so a journal of them holds none either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from json import dumps
from json.encoder import encode_basestring_ascii
from operator import attrgetter
from typing import Any, get_type_hints

import attrs

from inspan_core.errors import WireError
from inspan_core.events import EVENT_TYPES, Event

EVENTS: Mapping[str, type] = {kind.__name__: kind for kind in EVENT_TYPES}

Reader = Callable[[Any], Any]
Writer = Callable[[Any], str]


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


def event_text(event: Event) -> str:
    """The JSON text of `encode_event`, compact."""
    template, read, writers = _WRITERS[type(event)]
    fields = read(event)
    if writers:
        fields = list(fields)
        for place, write in writers:
            fields[place] = write(fields[place])
    return template % tuple(fields)


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


def _or_null(write: Writer) -> Writer:
    return lambda value: "null" if value is None else write(value)


def _writer(hint: Any) -> Writer | None:
    """What writes a field as JSON; None where its text is that already: a time is finite."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {member: dumps(member.value) for member in hint}.__getitem__
    plain: dict[Any, Writer | None] = {
        float: None,
        int: None,
        bool: {True: "true", False: "false"}.__getitem__,
        str: encode_basestring_ascii,
        int | None: _or_null(str),
        str | None: _or_null(encode_basestring_ascii),
    }
    return plain[hint]


def _writers(kind: type) -> tuple[str, Callable[[Any], Any], tuple[tuple[int, Writer], ...]]:
    """A template of the event's text, what reads its fields, and what writes some of them, by place."""
    hints = get_type_hints(kind)
    names = [field.name for field in attrs.fields(kind)]
    template = f'{{"event":"{kind.__name__}",{",".join(f"{dumps(name)}:%s" for name in names)}}}'
    read: Callable[[Any], Any] = attrgetter(*names) if len(names) > 1 else _one(names[0])
    found = ((place, _writer(hints[name])) for place, name in enumerate(names))
    return template, read, tuple((place, write) for place, write in found if write is not None)


def _one(name: str) -> Callable[[Any], tuple[Any]]:
    return lambda event: (getattr(event, name),)


_WRITERS = {kind: _writers(kind) for kind in EVENT_TYPES}
