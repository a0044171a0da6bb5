"""Tool grants: which apply to a session, and which the harness cannot use."""

from __future__ import annotations

from collections.abc import Iterable

from inspan_core.errors import RequestRefused
from inspan_core.harness import HarnessSpec
from inspan_core.observations import ObservationGap
from inspan_core.wire import SeedRequest, ToolAccess


def effective_tool_accesses(
    body: SeedRequest, configured: Iterable[ToolAccess] = ()
) -> tuple[ToolAccess, ...]:
    """The configuration's grants with the episode's over them, by name."""
    merged = {grant.name: grant for grant in configured}
    merged.update({grant.name: grant for grant in body.tool_accesses})
    return tuple(merged.values())


def check_grants(spec: HarnessSpec, grants: Iterable[ToolAccess]) -> tuple[ObservationGap, ...]:
    """Refuse what cannot be used; optional grants that cannot are skipped.

    Returns:
        A gap for each grant that was skipped.

    Raises:
        RequestRefused: A required grant is of a kind that the harness cannot use, or a name collides.
    """
    skipped = []
    for grant in grants:
        if grant.name in spec.builtin_tools:
            raise RequestRefused(
                f"tool grant {grant.name!r} collides with a built-in tool of harness {spec.name!r}",
                field="tool_accesses",
            )
        if grant.kind in spec.tool_sources:
            continue
        usable = ", ".join(sorted(spec.tool_sources)) or "none"
        reason = f"tool grant {grant.name!r} is {grant.kind}; harness {spec.name!r} can use: {usable}"
        if grant.required:
            raise RequestRefused(reason, field="tool_accesses")
        skipped.append(ObservationGap(code="tool_grant_skipped", detail=reason))
    return tuple(skipped)


def usable_grants(spec: HarnessSpec, grants: Iterable[ToolAccess]) -> tuple[ToolAccess, ...]:
    """The grants of kinds that the harness can use."""
    return tuple(grant for grant in grants if grant.kind in spec.tool_sources)
