"""Mutants that no hand wrote: every rung, lesson and rule of the tables, made wrong in turn."""

from collections.abc import Iterator

from inspan_core.events import Signal
from inspan_core.rules import Ignored, Rule, learns
from inspan_core.tables import LADDERS, LEARN, SESSION
from inspan_core.testing.mutant import Mutant, wrong_lesson, wrong_row

_SAME_END = "both rungs end the run"
_EVIDENCE = "the one asks for no evidence, the other for a confirmed receipt"
_COLLECTION = "the one asks for no collection, the other for a good one"
_SANDBOX = "the sandbox cannot be absent and gone at once"
_LAUNCH = "the one asks for a launch, the other for none"
_NO_STEP = "no step fails in a sandbox that is not there: the failure of a connect leads another way"

EQUIVALENT: dict[str, str] = {
    f"{rung}, swapped with the next": reason
    for rung, reason in {
        "finalize, rung 1 (the step failed)": _SAME_END,
        "finalize, rung 2 (the sandbox is gone)": _SAME_END,
        "finalize, rung 6 (not launched)": _LAUNCH,
        "finalize, rung 7 (its end unknown)": _EVIDENCE,
        "finalize, rung 8 (confirmed and uncollected)": _COLLECTION,
        "release, borrowed, rung 3 (no sandbox)": _SANDBOX,
        "release, borrowed, rung 5 (launched, and its end unknown)": _EVIDENCE,
        "release, borrowed, rung 6 (confirmed and uncollected)": _COLLECTION,
        "release, owned, rung 2 (any other step failed)": _NO_STEP,
        "release, owned, rung 6 (launched, and its end unknown)": _EVIDENCE,
        "release, owned, rung 7 (confirmed and uncollected)": _COLLECTION,
    }.items()
}
"""Mutants that are the same machine, each with the reason."""


def mechanical() -> Iterator[Mutant]:
    """Make every rung dropped, every two rungs swapped, every lesson unlearnt, every rule idle."""
    for goal, ladder in LADDERS.items():
        for at, rung in enumerate(ladder):
            name = f"{goal.value}, rung {at + 1} ({rung.says})"
            yield Mutant(f"{name}, dropped", LADDERS, goal, ladder[:at] + ladder[at + 1 :])
            if at + 1 < len(ladder):
                swapped = (*ladder[:at], ladder[at + 1], rung, *ladder[at + 2 :])
                yield Mutant(f"{name}, swapped with the next", LADDERS, goal, swapped)
    for run_phase, lessons in LEARN.items():
        for kind, lesson in lessons.items():
            if lesson != learns():
                yield wrong_lesson(
                    f"{run_phase.value}: {kind.__name__} teaches nothing", run_phase, kind, learns()
                )
    for phase, rows in SESSION.items():
        for key, row in rows.items():
            if isinstance(row, Rule):
                name = key.value if isinstance(key, Signal) else key.__name__
                yield wrong_row(f"{phase.value}: {name} is ignored", phase, key, Ignored("a mutant"))
