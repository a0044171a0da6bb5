"""The whole check of the machine: explore it, compare it with the contract, try wrong machines; and tell."""

import json
from typing import Any

from attrs import define

from inspan_core.testing.contract_walk import Comparison, compare
from inspan_core.testing.explorer import SETTINGS, Finding, Report, explore
from inspan_core.testing.mechanical import EQUIVALENT, mechanical
from inspan_core.testing.mutants import MUTANTS
from inspan_core.testing.pytest_case import pytest_case
from inspan_core.testing.stories import retell
from inspan_core.testing.trials import Tally, try_by_hand, try_mechanical

CONTRACT = 14
"""The number of the promise that every answer is what the contract says."""


@define(kw_only=True)
class Checkup:
    """What a check found.

    Attributes:
        report: What the exploration found.
        comparison: Where the contract oracle disagrees.
        tally: What became of wrong machines, or None when none were tried.
    """

    report: Report
    comparison: Comparison
    tally: Tally | None = None

    @property
    def violations(self) -> list[Finding]:
        """The broken promises and the answers that the contract does not allow."""
        return [*self.report.findings, *_disagreements(self.comparison)]

    @property
    def is_good(self) -> bool:
        """Whether nothing is broken, all is reached, and no wrong machine got away."""
        got_away = self.tally is not None and self.tally.survived
        return not (self.violations or self.report.unreached or got_away)


def check_up(*, waiters: int, by_hand: bool, by_rote: bool) -> Checkup:
    """Check the machine as its tables are now.

    Args:
        waiters: How many clients of a kind may wait at once, at least 1.
        by_hand: Try the wrong machines that were written by hand.
        by_rote: Try every mechanical one too, which takes minutes.

    Returns:
        What was found. Wrong machines are not tried when the machine itself is wrong.
    """
    found = Checkup(report=explore(waiters=waiters), comparison=compare(waiters=waiters))
    if by_hand and found.is_good:
        found.tally = try_by_hand(MUTANTS)
    if by_rote and found.tally is not None:
        more = try_mechanical(mechanical(), EQUIVALENT)
        found.tally.killed += more.killed
        found.tally.survived.extend(more.survived)
        found.tally.equivalent.extend(more.equivalent)
    return found


def _disagreements(comparison: Comparison) -> list[Finding]:
    return [
        Finding(
            invariant=CONTRACT,
            reason=f"the contract: {each.reason}",
            story=tuple(retell(each.story, SETTINGS)),
        )
        for each in comparison.disagreements.values()
    ]


def as_json(found: Checkup, seconds: float) -> str:
    """Write what was found as one JSON object on one line."""
    report, comparison, tally = found.report, found.comparison, found.tally
    answer = {
        "violations": [_violation(finding) for finding in found.violations],
        "unreached": report.unreached,
        "states": report.states,
        "transitions": report.transitions,
        "depth": report.depth,
        "probes": report.probes,
        "contract": {
            "states": comparison.states,
            "transitions": comparison.transitions,
            "requests": comparison.requests,
        },
        "mutants": {
            "killed": None if tally is None else tally.killed,
            "survived": None if tally is None else len(tally.survived),
            "equivalent": None if tally is None else len(tally.equivalent),
        },
        "survivors": [] if tally is None else tally.survived,
        "seconds": round(seconds, 3),
    }
    return json.dumps(answer) + "\n"


def _violation(finding: Finding) -> dict[str, Any]:
    return {
        "invariant": finding.invariant,
        "reason": finding.reason,
        "story": [str(chapter.event) for chapter in finding.story],
        "case": _case(finding),
    }


def _case(finding: Finding) -> str:
    return pytest_case(finding.reason, [chapter.event for chapter in finding.story])


def as_text(found: Checkup, seconds: float) -> str:
    """Write what was found for people: the stories first, the numbers last."""
    report, comparison = found.report, found.comparison
    lines: list[str] = []
    for finding in found.violations:
        lines.extend((str(finding), "", "As a test:", "", _case(finding)))
    lines.extend(f"nothing leads to {place}" for place in report.unreached)
    lines.append(
        f"explored: {report.states} states, {report.transitions} transitions, depth {report.depth}, "
        f"{report.probes} probes"
    )
    lines.append(
        f"compared with the contract: {comparison.states} states, {comparison.transitions} transitions, "
        f"{comparison.requests} requests"
    )
    lines.extend(_mutants(found))
    lines.append(
        f"{len(found.violations)} violations, {len(report.unreached)} places unreached, {seconds:.1f} s"
    )
    return "\n".join(lines) + "\n"


def _mutants(found: Checkup) -> list[str]:
    tally = found.tally
    if tally is None:
        return ["mutants: not run"]
    numbers = f"{tally.killed} killed, {len(tally.survived)} survived, {len(tally.equivalent)} equivalent"
    return [*(f"not found out: {name}" for name in tally.survived), f"mutants: {numbers}"]
