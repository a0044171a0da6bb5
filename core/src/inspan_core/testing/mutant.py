"""What mutants are made of: one entry of a table of the machine, changed for as long as a context lasts."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeAlias

from attrs import evolve, frozen

from inspan_core.draft import Draft
from inspan_core.events import Signal
from inspan_core.rules import Rung
from inspan_core.session import Phase, RunPhase
from inspan_core.tables import LADDERS, LEARN, SESSION, Goal, Key

Ladder: TypeAlias = tuple[Rung, ...]


@frozen
class Mutant:
    """One wrong machine.

    Attributes:
        name: What is wrong with it.
        table: The table that is changed: SESSION, LEARN, LADDERS, CHECKS or ORDERS, or the names of a module.
        key: The entry that is changed.
        value: What it is changed to.
        breaks: The invariants of which the explorer may report one first; empty for any.
    """

    name: str
    table: dict[Any, Any]
    key: object
    value: object
    breaks: tuple[int, ...] = ()

    @contextmanager
    def applied(self) -> Generator[None]:
        """Make the machine wrong for as long as the context lasts."""
        kept = self.table[self.key]
        self.table[self.key] = self.value
        try:
            yield
        finally:
            self.table[self.key] = kept


def wrong_row(name: str, phase: Phase, key: Key, row: object, *breaks: int) -> Mutant:
    """Put another row into SESSION."""
    return Mutant(name, SESSION, phase, {**SESSION[phase], key: row}, breaks)


def wrong_lesson(name: str, phase: RunPhase, kind: type, lesson: object, *breaks: int) -> Mutant:
    """Put another lesson into LEARN."""
    return Mutant(name, LEARN, phase, {**LEARN[phase], kind: lesson}, breaks)


def wrong_ladder(name: str, goal: Goal, change: Callable[[Ladder], Ladder], *breaks: int) -> Mutant:
    """Change a ladder of LADDERS."""
    return Mutant(name, LADDERS, goal, change(LADDERS[goal]), breaks)


def without(*then: RunPhase | Signal) -> Callable[[Ladder], Ladder]:
    """Drop every rung that leads to one of these."""
    return lambda ladder: tuple(rung for rung in ladder if rung.then not in then)


def first(then: RunPhase) -> Callable[[Ladder], Ladder]:
    """Move a rung up, before the one that stops the harness."""

    def moved(ladder: Ladder) -> Ladder:
        rung = next(rung for rung in ladder if rung.then is then)
        at = next(at for at, other in enumerate(ladder) if other.then is RunPhase.STOPPING)
        rest = [other for other in ladder if other is not rung]
        return (*rest[:at], rung, *rest[at:])

    return moved


def only_when(then: RunPhase | Signal, when: Callable[[Draft], bool]) -> Callable[[Ladder], Ladder]:
    """Give the rung that leads there another condition."""
    return lambda ladder: tuple(evolve(rung, when=when) if rung.then is then else rung for rung in ladder)
