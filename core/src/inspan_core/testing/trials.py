"""Trials of wrong machines: is each found out, and by what?"""

from collections.abc import Iterable, Mapping

from attrs import define, field

from inspan_core.testing.explorer import Finding, explore
from inspan_core.testing.mutant import Mutant


@define(kw_only=True)
class Tally:
    """What became of mutants.

    Attributes:
        killed: How many were found out.
        survived: The names of those that were not, and should have been.
        equivalent: The names of those that are the same machine, and were rightly not found out.
    """

    killed: int = 0
    survived: list[str] = field(factory=list[str])
    equivalent: list[str] = field(factory=list[str])


def trial(mutant: Mutant, waiters: int = 2) -> Finding | None:
    """Explore one wrong machine until the first broken promise.

    Args:
        mutant: What is wrong.
        waiters: How many clients of a kind may wait at once, at least 1.

    Returns:
        The broken promise, or None when the explorer sees nothing wrong.
    """
    with mutant.applied():
        findings = explore(waiters=waiters, stop_at_first=True, cover=False).findings
    return findings[0] if findings else None


def try_by_hand(mutants: Iterable[Mutant]) -> Tally:
    """Try mutants that name the promises which they break, and have to be found out by one of these."""
    tally = Tally()
    for mutant in mutants:
        finding = trial(mutant)
        if finding is not None and finding.invariant in mutant.breaks:
            tally.killed += 1
        else:
            tally.survived.append(mutant.name)
    return tally


def try_mechanical(mutants: Iterable[Mutant], equivalent: Mapping[str, str]) -> Tally:
    """Try mutants that any promise may find out, or a part of the tables that is not reached any more.

    Args:
        mutants: What is wrong.
        equivalent: Names of those that are the same machine, each with the reason.
    """
    tally = Tally()
    for mutant in mutants:
        if _is_found_out(mutant):
            tally.killed += 1
        elif mutant.name in equivalent:
            tally.equivalent.append(mutant.name)
        else:
            tally.survived.append(mutant.name)
    return tally


def _is_found_out(mutant: Mutant) -> bool:
    if trial(mutant, waiters=1) is not None:
        return True
    with mutant.applied():
        return bool(explore(waiters=1).unreached)
