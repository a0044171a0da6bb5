"""Explore a session's machine completely: every reachable state of session and world, every move of each.

Breadth first, so that the first violation that is found has a shortest story.
"""

from collections import deque
from contextlib import nullcontext

from attrs import define, field, frozen

from inspan_core.errors import InspanError
from inspan_core.events import Event
from inspan_core.machine import new_session
from inspan_core.rules import Ignored, Refused, Row
from inspan_core.session import Settings
from inspan_core.tables import SESSION
from inspan_core.testing.coverage import Coverage, note_row, recording
from inspan_core.testing.invariants import check_transition
from inspan_core.testing.moves import moves
from inspan_core.testing.probing import impossibilities, refusals
from inspan_core.testing.prospects import Prospects
from inspan_core.testing.states import State, canonical
from inspan_core.testing.stories import Chapter, retell, told
from inspan_core.testing.transitions import Violation, transition
from inspan_core.testing.world import World

SETTINGS = Settings(lease_s=3600.0)
"""A lease is counted, so that its expiry is among the moves."""


@frozen(kw_only=True)
class Finding:
    """One broken promise, with a shortest story that leads to it.

    Attributes:
        invariant: The invariant's number; 0 when the machine itself raised.
        reason: One sentence.
        story: The events, in real numbers.
    """

    invariant: int
    reason: str
    story: tuple[Chapter, ...]

    def __str__(self) -> str:
        return f"invariant {self.invariant}: {self.reason}\n{told(self.story)}"


@define(kw_only=True)
class Report:
    """What an exploration found.

    Attributes:
        states: How many states were reached.
        transitions: How many moves were made.
        depth: How many events the longest shortest way to a state has.
        probes: How many events were fed that must change nothing.
        findings: The broken promises.
        unreached: Rows, targets, lessons and rungs that nothing led to; empty when not recorded.
    """

    states: int = 0
    transitions: int = 0
    depth: int = 0
    probes: int = 0
    findings: list[Finding] = field(factory=list[Finding])
    unreached: list[str] = field(factory=list[str])


class Explorer:
    """One exploration."""

    def __init__(self, *, waiters: int, stop_at_first: bool, coverage: Coverage | None) -> None:
        self._waiters = waiters
        self._stop_at_first = stop_at_first
        self._coverage = coverage
        self._prospects = Prospects()
        start = State(canonical(new_session("story", SETTINGS)), World())
        self._seen: dict[State, tuple[State, Event] | None] = {start: None}
        self._queue = deque([(start, 0)])
        self._broken: set[tuple[int, str]] = set()
        self.report = Report()

    def run(self) -> Report:
        """Explore until nothing new is reached, or the first violation where that is asked for."""
        while self._queue:
            state, depth = self._queue.popleft()
            self.report.depth = depth
            self._visit(state, depth)
            if self.report.findings and self._stop_at_first:
                break
        self.report.states = len(self._seen)
        if self._coverage is not None:
            self.report.unreached = self._coverage.missing()
        return self.report

    def _visit(self, state: State, depth: int) -> None:
        self._probe(state)
        self._hold(state, None)
        for event in moves(state, self._waiters):
            self.report.transitions += 1
            self._note(state, event)
            after = self._hold(state, event)
            if after is not None and after not in self._seen:
                self._seen[after] = (state, event)
                self._queue.append((after, depth + 1))

    def _hold(self, state: State, event: Event | None) -> State | None:
        """Hold the invariants over one move, or over the state's prospects; None when one broke."""
        try:
            if event is None:
                self._prospects.check(state)
                return None
            move = transition(state, event)
            check_transition(move)
        except Violation as violation:
            self._found(violation.invariant, violation.reason, state, event)
        except InspanError as error:
            self._found(0, f"{type(error).__name__}: {error}", state, event)
        else:
            return move.after
        return None

    def _probe(self, state: State) -> None:
        """Feed what must change nothing: refused requests, late events, impossible ones."""
        for event, violation in refusals(state):
            self._probed(state, event, violation)
        for event, violation in impossibilities(state):
            self._note(state, event)
            self._probed(state, event, violation)

    def _probed(self, state: State, event: Event, violation: Violation | None) -> None:
        self.report.probes += 1
        if violation is not None:
            self._found(violation.invariant, violation.reason, state, event)

    def _note(self, state: State, event: Event) -> None:
        if self._coverage is None:
            return
        phase = state.session.phase
        row: Row | None = SESSION[phase].get(type(event))
        if isinstance(row, Ignored | Refused):
            note_row(self._coverage, phase, type(event))

    def _found(self, invariant: int, reason: str, state: State, event: Event | None) -> None:
        if (invariant, reason) in self._broken:
            return
        self._broken.add((invariant, reason))
        events = [] if event is None else [event]
        link = self._seen[state]
        while link is not None:
            state, led = link
            events.append(led)
            link = self._seen[state]
        story = tuple(retell(events[::-1], SETTINGS))
        self.report.findings.append(Finding(invariant=invariant, reason=reason, story=story))


def explore(*, waiters: int = 2, stop_at_first: bool = False, cover: bool = True) -> Report:
    """Explore the machine as its tables are now.

    Args:
        waiters: How many clients of a kind may wait at once, at least 1.
        stop_at_first: Stop at the first broken promise.
        cover: Record what is reached of the tables, and report what is not.
    """
    with recording() if cover else nullcontext() as coverage:
        return Explorer(waiters=waiters, stop_at_first=stop_at_first, coverage=coverage).run()
