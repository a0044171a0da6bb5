"""Random walks: one session in real numbers and one in the explorer's, side by side."""

from collections.abc import Sequence

from inspan_core.effects import Effect
from inspan_core.events import Event
from inspan_core.machine import new_session, step
from inspan_core.session import Session
from inspan_core.testing.explorer import SETTINGS
from inspan_core.testing.moves import moves
from inspan_core.testing.states import State, canonical
from inspan_core.testing.stories import renumbered
from inspan_core.testing.transitions import Transition, transition
from inspan_core.testing.world import World


class Walk:
    """A walk through the machine's states, led by numbers that somebody draws.

    Attributes:
        session: The session in real numbers.
        state: The explorer's state of the same walk.
        events: What was fed, in real numbers.
        effects: What was ordered upon each event, in real numbers.
    """

    def __init__(self, waiters: int = 2) -> None:
        self.session: Session = new_session("walk", SETTINGS)
        self.state = State(canonical(self.session), World())
        self.events: list[Event] = []
        self.effects: list[tuple[Effect, ...]] = []
        self._waiters = waiters

    def go(self, choice: int) -> Transition:
        """Make one of the moves that are open: the one that the number chooses, of any size.

        Returns:
            The explorer's transition.
        """
        open_moves = list(moves(self.state, self._waiters))
        move = transition(self.state, open_moves[choice % len(open_moves)])
        event = renumbered(self.session, move.event, len(self.events) + 1)
        self.session, effects = step(self.session, event)
        self.state = move.after
        self.events.append(event)
        self.effects.append(effects)
        return move

    def follow(self, choices: Sequence[int]) -> None:
        """Make one move for each number."""
        for choice in choices:
            self.go(choice)
