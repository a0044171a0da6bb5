"""The one way in and out for wire types: strict, with every fault named by its place.

Example::

    seed = decode(SeedRequest, parse_json(body, limit_bytes))
    body = encode(SeedResponse(agent_session_id=seed.agent_session_id))
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import attrs

from inspan_core.errors import WireError
from inspan_core.faults import Faults, fault
from inspan_core.json_text import canonical_text, parse_json, problem
from inspan_core.observation_rules import OBSERVATION_CHECKS
from inspan_core.observations import AgentObservationBundle
from inspan_core.structuring import build_converter, url_fields
from inspan_core.wire import (
    DESCRIPTOR_LENGTH,
    REQUEST_DEFAULTS,
    TOOL_ACCESSES_LIMIT,
    DirectSandboxConnection,
    ResponsesRequest,
    SeedRequest,
)

__all__ = ["decode", "encode", "encode_observations", "normalised_digest", "parse_json"]

T = TypeVar("T")


def decode(kind: type[T], data: Any) -> T:
    """Make a wire value from parsed JSON.

    Raises:
        WireError: With one entry for every fault found.
    """
    try:
        if data is None:
            raise fault("missing", "is required", None)
        return _CONVERTER.structure(data, kind)
    except Faults as error:
        raise WireError([problem(*each) for each in error.faults]) from error


def encode(value: Any) -> Any:
    """The JSON value of a wire value: objects, arrays, text, numbers, booleans and null only."""
    return dict(value.raw) if isinstance(value, ResponsesRequest) else _CONVERTER.unstructure(value)


def encode_observations(bundle: AgentObservationBundle) -> dict[str, Any]:
    """The JSON object of a bundle that someone else made, after checking all of its rules.

    Raises:
        WireError: A record has a wrong type, breaks a rule, or holds what is not JSON.
    """
    encoded: dict[str, Any] = encode(bundle)
    try:
        plain = parse_json(canonical_text(encoded).encode("utf-8", "surrogatepass"), _NO_LIMIT)
    except (TypeError, ValueError) as error:
        raise WireError([problem("value_error", (), f"holds what is not JSON: {error}", None)]) from error
    decode(AgentObservationBundle, plain)
    return encoded


def normalised_digest(value: Any) -> str:
    """What is equal for equal requests: defaults filled in, URLs without their final slash.

    Returns:
        64 hexadecimal digits.
    """
    canonical = _normalised_request(value) if isinstance(value, ResponsesRequest) else _normalised(value)
    return hashlib.sha256(canonical_text(canonical).encode()).hexdigest()


_NO_LIMIT = 1 << 62


def _normalised_request(request: ResponsesRequest) -> dict[str, Any]:
    given = {name: item for name, item in request.raw.items() if item is not None}
    return {**REQUEST_DEFAULTS, **given}


def _normalised(value: Any) -> Any:
    kind: Any = cast(Any, type(value))
    if attrs.has(kind):
        urls = url_fields(kind)
        return {
            name: (item.rstrip("/") if name in urls else _normalised(item))
            for name in _field_names(kind)
            for item in (getattr(value, name),)
        }
    if isinstance(value, list | tuple):
        return [_normalised(item) for item in cast(Sequence[Any], value)]
    return value


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(attrs.fields_dict(kind))


def _check_connection(connection: DirectSandboxConnection, data: dict[str, Any]) -> None:
    if len(canonical_text(connection.descriptor)) > DESCRIPTOR_LENGTH:
        message = f"must have at most {DESCRIPTOR_LENGTH} characters as JSON"
        raise fault("too_long", message, None, "descriptor")


def _check_seed(seed: SeedRequest, data: dict[str, Any]) -> None:
    if len(seed.tool_accesses) > TOOL_ACCESSES_LIMIT:
        message = f"must have at most {TOOL_ACCESSES_LIMIT} entries"
        raise fault("too_long", message, None, "tool_accesses")
    names = [access.name for access in seed.tool_accesses]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        message = f"must have names that differ: {', '.join(repeated)}"
        raise fault("value_error", message, data["tool_accesses"], "tool_accesses")


def _keep_raw(request: ResponsesRequest, data: dict[str, Any]) -> None:
    if "raw" in data:
        raise fault("extra_forbidden", "is not a field of this object", data["raw"], "raw")
    object.__setattr__(request, "raw", data)


_CHECKS: Mapping[type, Callable[[Any, Any], None]] = {
    DirectSandboxConnection: _check_connection,
    SeedRequest: _check_seed,
    ResponsesRequest: _keep_raw,
    **OBSERVATION_CHECKS,
}
_CONVERTER = build_converter(_CHECKS)
