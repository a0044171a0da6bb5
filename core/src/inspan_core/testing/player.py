"""Play stories by hand: a session, the numbers of its orders, and who was answered what."""

from typing import Any

from inspan_core.effects import Effect, Order, Reply, StartTimer
from inspan_core.events import (
    ActivateRequested,
    CloseRequested,
    Collected,
    CollectResult,
    Cookie,
    Event,
    ExecReturned,
    Installed,
    Outcome,
    Parsed,
    Path,
    SandboxReady,
    SeedRequested,
    SlotGranted,
    Staged,
    TerminationConfirmed,
)
from inspan_core.machine import new_session, step
from inspan_core.session import Session, Settings


class Player:
    """A session that is played by hand, for tests and examples.

    Attributes:
        session: The session as it is.
        order: The last order that was given, or None.
        timer: The last timer that was started, or None.
        replies: What each waiter was answered.
        events: Everything that was fed, in order.
    """

    def __init__(self, name: str = "s1", settings: Settings | None = None) -> None:
        self.session: Session = new_session(name, settings)
        self.order: Order | None = None
        self.timer: StartTimer | None = None
        self.replies: dict[int, Reply] = {}
        self.events: list[Event] = []
        self._waiters = 0

    @property
    def doing(self) -> str:
        """The phase of the session and the order in flight, for example ``"ACTIVE STAGING"``."""
        return f"{self.session.phase.value} {self.session.run.phase.value}"

    def feed(self, event: Event) -> tuple[Effect, ...]:
        """Feed one event and note what came of it."""
        self.events.append(event)
        self.session, effects = step(self.session, event)
        for effect in effects:
            if isinstance(effect, Reply):
                self.replies[effect.waiter] = effect
            elif isinstance(effect, StartTimer):
                self.timer = effect
            else:
                self.order = effect
        return effects

    def answer(
        self, kind: type, *, order: int | None = None, at: float = 0.0, **fields: Any
    ) -> tuple[Effect, ...]:
        """Answer the order in flight, or the one with the number ``order``."""
        number = self.session.run.order if order is None else order
        event: Event = kind(at=at, order=number, **fields)
        return self.feed(event)

    def seed(self, *, owned: bool = False, body: str = "A", cookie: Cookie = Cookie.ABSENT) -> int:
        """Have one more client seed.

        Returns:
            Its waiter.
        """
        waiter = self._client()
        self.feed(SeedRequested(at=0.0, waiter=waiter, body_digest=body, owned=owned, cookie=cookie))
        return waiter

    def activate(
        self,
        *,
        body: str = "A",
        cookie: Cookie = Cookie.SAME,
        path: Path = Path.MATCHES,
        timeout_s: float = 60.0,
    ) -> int:
        """Have one more client activate.

        Returns:
            Its waiter.
        """
        waiter = self._client()
        self.feed(
            ActivateRequested(
                at=0.0, waiter=waiter, body_digest=body, cookie=cookie, path=path, run_timeout_s=timeout_s
            )
        )
        return waiter

    def close(self, *, cookie: Cookie = Cookie.ABSENT, same_episode: bool = True) -> int:
        """Have one more client close.

        Returns:
            Its waiter.
        """
        waiter = self._client()
        self.feed(CloseRequested(at=0.0, waiter=waiter, cookie=cookie, same_episode=same_episode))
        return waiter

    def _client(self) -> int:
        self._waiters += 1
        return self._waiters

    def confirm(self, *, return_code: int = 0) -> None:
        """Answer with a positive receipt."""
        self.answer(TerminationConfirmed, return_code=return_code, timed_out=False, error=None)

    def collect_and_parse(self, outcome: Outcome = Outcome.COMPLETED, detail: str | None = None) -> None:
        """Answer the collection well, and the parsing with this outcome."""
        self.answer(Collected, result=CollectResult.OK, detail=None)
        self.answer(Parsed, outcome=outcome, detail=detail)


def ready(*, owned: bool = False, settings: Settings | None = None) -> Player:
    """Play a session to READY; its seed is waiter 1."""
    player = Player(settings=settings)
    player.seed(owned=owned)
    player.answer(SandboxReady)
    player.answer(Installed)
    return player


def running(*, owned: bool = False, settings: Settings | None = None) -> Player:
    """Play a session until its harness is launched; its activation is waiter 2."""
    player = ready(owned=owned, settings=settings)
    player.activate()
    player.answer(SlotGranted)
    player.answer(Staged)
    return player


def finished(*, owned: bool = False, settings: Settings | None = None) -> Player:
    """Play a session to FINISHED, with a result that may be graded."""
    player = running(owned=owned, settings=settings)
    player.answer(ExecReturned, exit_code=0)
    player.confirm()
    player.collect_and_parse()
    return player
