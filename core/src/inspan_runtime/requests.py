"""Every field of a Responses request is applied, refused, or ignored by declaration; none is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inspan_core.errors import RequestRefused
from inspan_core.harness import HarnessSpec

EMPTY_VALUES: tuple[Any, ...] = (None, [], {}, "")
MEANT_ANYWAY: Mapping[str, Any] = {
    "background": False,
    "parallel_tool_calls": True,
    "stream": False,
    "tool_choice": "auto",
    "truncation": "disabled",
}
"""Values that say what happens without the field."""


def check_request(spec: HarnessSpec, request: Mapping[str, Any]) -> None:
    """Refuse a field that the harness neither applies nor ignores by design.

    Raises:
        RequestRefused: Names the field.
    """
    for name, value in request.items():
        if value in EMPTY_VALUES or MEANT_ANYWAY.get(name, _NOTHING) == value:
            continue
        if spec.request_fields.get(name, "refused") == "refused":
            applied = ", ".join(sorted(k for k, use in spec.request_fields.items() if use == "applied"))
            raise RequestRefused(
                f"harness {spec.name!r} does not support the request field {name!r}; it applies: {applied}",
                field=name,
            )


_NOTHING = object()
