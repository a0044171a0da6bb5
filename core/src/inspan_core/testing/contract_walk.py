"""Walk every reachable state of the machine beside the contract oracle, and list where they disagree.

The oracle's memory is part of the walk: one machine state that two histories lead to is visited once for each
memory. In every state each request is tried, with every finding and both bodies; in every step each reply is
judged, whoever waited for it.
"""

from collections import deque
from collections.abc import Iterator

from attrs import define, evolve, field, frozen

from inspan_core.effects import Body, CloseBody, ErrorBody
from inspan_core.errors import InspanError
from inspan_core.events import Cookie, Event, Path, Request
from inspan_core.findings import Outcome
from inspan_core.machine import new_session, step
from inspan_core.session import Phase, Session
from inspan_core.testing.contract_judge import judge
from inspan_core.testing.contract_oracle import Expected, Standing
from inspan_core.testing.explorer import SETTINGS
from inspan_core.testing.moves import BODY_A, BODY_B, activation, close, moves, seed
from inspan_core.testing.states import KEPT, State, canonical
from inspan_core.testing.stories import renumbered, retell, told
from inspan_core.testing.transitions import transition
from inspan_core.testing.world import World


@frozen(kw_only=True)
class Disagreement:
    """One reply that the contract does not allow, with a shortest story that leads to it."""

    reason: str
    story: tuple[Event, ...]

    def __str__(self) -> str:
        return f"{self.reason}\n{told(retell(self.story, SETTINGS))}"


@define(kw_only=True)
class Comparison:
    """What a walk found.

    Attributes:
        states: How many pairs of machine state and oracle memory were visited.
        transitions: How many moves were judged.
        requests: How many requests were tried beside the moves.
        disagreements: One for each reason.
    """

    states: int = 0
    transitions: int = 0
    requests: int = 0
    disagreements: dict[str, Disagreement] = field(factory=dict[str, Disagreement])


@frozen
class _Place:
    """The explorer's state, the same session in its own numbers and words, the oracle's memory, the way."""

    state: State
    session: Session
    standing: Standing
    came_from: "tuple[_Place, Event] | None"

    def story(self, event: Event) -> tuple[Event, ...]:
        events = [event]
        link = self.came_from
        while link is not None:
            events.append(link[1])
            link = link[0].came_from
        return tuple(events[::-1])


def requests(state: State) -> Iterator[Request]:
    """Make every request that the oracle tells apart."""
    session = state.session
    ownerships = (False, True) if session.phase is Phase.NEW else (state.world.owned,)
    for cookie in Cookie:
        for body in (BODY_A, BODY_B):
            for owned in ownerships:
                yield seed(session, owned=owned, body=body, cookie=cookie)
            for path in Path:
                yield activation(session, body=body, cookie=cookie, path=path)
        for same_episode in (True, False):
            yield close(session, cookie=cookie, same_episode=same_episode)


def compare(*, waiters: int = 2, stop_at_first: bool = False) -> Comparison:
    """Walk the machine as its tables are now, beside the oracle.

    Args:
        waiters: How many clients of a kind may wait at once, at least 1.
        stop_at_first: Stop at the first disagreement.

    Returns:
        What was visited, and the disagreements by reason.
    """
    found = Comparison()
    session = new_session("story", SETTINGS)
    start = _Place(State(canonical(session), World()), session, Standing(), None)
    seen = {(start.state, start.standing)}
    queue = deque([start])
    while queue and not (stop_at_first and found.disagreements):
        place = queue.popleft()
        for request in requests(place.state):
            found.requests += 1
            _judged(found, place, request)
        for event in moves(place.state, waiters):
            found.transitions += 1
            after = _moved(found, place, event)
            if after is None:
                continue
            key = (after.state, _canonical(after.standing, after.session.phase))
            if key not in seen:
                seen.add(key)
                queue.append(after)
    found.states = len(seen)
    return found


def _moved(found: Comparison, place: _Place, event: Event) -> _Place | None:
    """Make one move, which is judged; None when the machine raised."""
    judged = _judged(found, place, event)
    if judged is None:
        return None
    session, standing = judged
    return _Place(transition(place.state, event).after, session, standing, (place, event))


def _judged(found: Comparison, place: _Place, event: Event) -> tuple[Session, Standing] | None:
    """Feed one event to the session in its own numbers, and let the oracle judge what comes of it."""
    before = place.session
    real = renumbered(before, event, _next_waiter(before))
    try:
        session, effects = step(before, real)
    except InspanError as error:
        _note(found, place, event, f"{type(error).__name__}: {error}")
        return None
    standing, problems = judge(place.standing, before, real, session, effects)
    for problem in problems:
        _note(found, place, event, problem)
    return session, standing


def _note(found: Comparison, place: _Place, event: Event, problem: str) -> None:
    reason = f"{place.session.phase.value}, {type(event).__name__}: {problem}"
    if reason not in found.disagreements:
        found.disagreements[reason] = Disagreement(reason=reason, story=place.story(event))


def _next_waiter(session: Session) -> int:
    return max((*session.seed_waiters, *session.activation_waiters, *session.close_waiters), default=0) + 1


def _canonical(standing: Standing, phase: Phase) -> Standing:
    """Make memories one that differ in words only, or in what the oracle will not look at again."""
    standing = evolve(
        standing, answered=_canonical_answer(standing.answered), closed=_canonical_answer(standing.closed)
    )
    if phase not in (Phase.SEEDING, Phase.UNWINDING):
        standing = evolve(standing, setup_error=None)
    if phase is not Phase.CLOSING:
        standing = evolve(standing, missing=False)
    if phase is not Phase.ACTIVE and (phase is not Phase.FINISHED or standing.answered is not None):
        standing = evolve(
            standing, confirmed=False, refuted=False, collected=False, parsed=None, unfixable=False
        )
    if phase is not Phase.FINISHED:
        standing = evolve(standing, answered=None)
    return evolve(standing, parsed=_PARSED.get(standing.parsed, standing.parsed))


_PARSED: dict[Outcome | None, Outcome | None] = {Outcome.INCOMPLETE: Outcome.COMPLETED, Outcome.FAILED: None}


def _canonical_answer(answer: Expected | None) -> Expected | None:
    return None if answer is None else evolve(answer, replay=_canonical_body(answer.replay))


def _canonical_body(body: Body | None) -> Body | None:
    if isinstance(body, ErrorBody):
        return ErrorBody(detail=KEPT)
    if isinstance(body, CloseBody):
        return evolve(body, gaps=tuple(evolve(gap, detail=KEPT) for gap in body.gaps))
    return body
