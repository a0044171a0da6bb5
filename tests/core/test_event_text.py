"""The text of an event that a journal keeps is the JSON that its reader reads."""

import json
from enum import Enum
from typing import get_type_hints

import attrs
from hypothesis import given
from hypothesis import strategies as st

from inspan_core.events import EVENT_TYPES
from inspan_core.journal import decode_event, encode_event, event_text

FIELDS = {
    float: st.floats(allow_nan=False, allow_infinity=False),
    int: st.integers(),
    bool: st.booleans(),
    str: st.text(),
    int | None: st.none() | st.integers(),
    str | None: st.none() | st.text(),
}


def events(kind):
    hints = get_type_hints(kind)
    fields = {field.name: hints[field.name] for field in attrs.fields(kind)}
    made = {
        name: st.sampled_from(list(hint))
        if isinstance(hint, type) and issubclass(hint, Enum)
        else FIELDS[hint]
        for name, hint in fields.items()
    }
    return st.builds(kind, **made)


@given(st.one_of(*(events(kind) for kind in EVENT_TYPES)))
def test_text_is_the_compact_json_of_the_event(event):
    text = event_text(event)
    assert text == json.dumps(encode_event(event), separators=(",", ":"))
    assert decode_event(json.loads(text)) == event
