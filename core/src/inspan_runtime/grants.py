"""Tool grants: which apply to a session, and which the harness cannot use."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

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


@frozen(kw_only=True)
class GrantPlan:
    """Which grants a session's harness gets.

    Attributes:
        usable: Those that it can use, as far as one can tell without connecting to them.
        unusable: The others, each with the reason.
    """

    usable: tuple[ToolAccess, ...]
    unusable: tuple[tuple[ToolAccess, str], ...] = ()

    def refuse_required(self) -> None:
        """Refuse the session if it cannot do without one of the grants.

        Raises:
            RequestRefused: Names the grant and says why it cannot be used.
        """
        for grant, reason in self.unusable:
            if grant.required:
                raise RequestRefused(f"tool grant {grant.name!r} {reason}", field="tool_accesses")

    @property
    def gaps(self) -> tuple[ObservationGap, ...]:
        """One for each grant that is left out."""
        return tuple(
            ObservationGap(code="tool_grant_skipped", detail=f"tool grant {grant.name!r} {reason}")
            for grant, reason in self.unusable
        )


NO_GRANTS = GrantPlan(usable=())


def plan_grants(spec: HarnessSpec, grants: Iterable[ToolAccess]) -> GrantPlan:
    """Decide by their names and kinds which grants the harness gets.

    Of several of kind ``direct_http`` it gets one, since a request's functions do not say whose they are: a
    required one before an optional one, and the episode's before the configuration's.
    """
    given = tuple(grants)
    if not given:
        return NO_GRANTS
    usable: list[ToolAccess] = []
    unusable: list[tuple[ToolAccess, str]] = []
    owner = _owner_of_functions(given)
    for grant in given:
        if grant.name in spec.builtin_tools:
            reason = f"collides with a built-in tool of harness {spec.name!r}"
        elif grant.kind not in spec.tool_sources:
            known = ", ".join(sorted(spec.tool_sources)) or "none"
            reason = f"is {grant.kind}; harness {spec.name!r} can use: {known}"
        elif grant.kind == "direct_http" and grant.name != owner:
            reason = f"is one direct_http grant too many: {owner!r} has the request's functions"
        else:
            usable.append(grant)
            continue
        unusable.append((grant, reason))
    return GrantPlan(usable=tuple(usable), unusable=tuple(unusable))


def _owner_of_functions(grants: tuple[ToolAccess, ...]) -> str | None:
    ranked = [
        (grant.required, index, grant.name)
        for index, grant in enumerate(grants)
        if grant.kind == "direct_http"
    ]
    return max(ranked)[2] if ranked else None


def check_grants(spec: HarnessSpec, grants: Iterable[ToolAccess]) -> tuple[ObservationGap, ...]:
    """Refuse what cannot be used; optional grants that cannot are skipped.

    Returns:
        A gap for each grant that was skipped.

    Raises:
        RequestRefused: A required grant cannot be used.
    """
    plan = plan_grants(spec, grants)
    plan.refuse_required()
    return plan.gaps


def usable_grants(spec: HarnessSpec, grants: Iterable[ToolAccess]) -> tuple[ToolAccess, ...]:
    """The grants that the harness gets."""
    return plan_grants(spec, grants).usable
