"""Play stories by hand: a session, the numbers of its orders, and who was answered what."""

from typing import Any

from inspan_core.effects import Effect, Order, Reply, StartTimer
from inspan_core.events import ActivateRequested, CloseRequested, Cookie, Event, Path, SeedRequested
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
