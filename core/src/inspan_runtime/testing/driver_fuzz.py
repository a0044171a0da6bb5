"""Fuzz the driver of another orchestrator: whoever feeds events to the machine and obeys its effects.

The driver is asked for three things (`Drives`) and told of one: where to take its effects. Everything else is
played here: clients, the answers to orders, late and repeated ones, timers, and a death at any moment, also
while the effects of an event are being obeyed. Beside it runs the machine itself; the two must never differ.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import hypothesis
from attrs import asdict, define, evolve, field
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from inspan_core.effects import (
    AwaitReceipt,
    CancelPending,
    Effect,
    Launch,
    Order,
    Reply,
    StartTimer,
    StopHarness,
)
from inspan_core.errors import NotAllowed
from inspan_core.events import (
    ActivateRequested,
    ClientGone,
    CloseRequested,
    Collected,
    Cookie,
    Disconnected,
    Event,
    ExecReleased,
    ExecReturned,
    FilesRemoved,
    Installed,
    Parsed,
    Path,
    Restarted,
    SandboxReady,
    SandboxStopped,
    SeedRequested,
    SlotGranted,
    Staged,
    TerminationConfirmed,
)
from inspan_core.machine import step
from inspan_core.session import Session
from inspan_core.tables import ANSWERS
from inspan_core.testing.moves import variants
from inspan_runtime.timer_events import TIMER_EVENTS

CLIENTS = 4
STORY_LIMIT = 60
MOVES_LIMIT = 60
GOOD_ANSWERS = (
    SandboxReady,
    Installed,
    SlotGranted,
    Staged,
    TerminationConfirmed,
    ExecReturned,
    Collected,
    Parsed,
    ExecReleased,
    FilesRemoved,
    Disconnected,
    SandboxStopped,
)
USUAL = 2
"""Of four moves so many are usual: a good answer, or else what a client asks for who does all in order.
The deep places of a session lie behind many of them."""


class Drives(Protocol):
    """A driver of one session, which begins in phase NEW."""

    def deliver(self, event: Event) -> None:
        """Take an event: keep it, then obey its effects.

        Raises:
            NotAllowed: The machine refuses the event.
        """
        ...

    def restart(self) -> None:
        """Forget everything but what was kept, and come back: tell the machine `Restarted`, and obey."""
        ...

    def snapshot(self) -> Session:
        """The session as the driver has it."""
        ...


Obey = Callable[[Effect], None]
MakeDriver = Callable[[Obey], Drives]
"""Makes a driver that hands each effect over, in order. What it raises is not to be caught."""


class Death(BaseException):
    """Raised by the taker of effects: the process dies in the middle of obeying."""


class DriverFault(AssertionError):
    """The driver does not do what the machine says; the message is the story.

    Attributes:
        story: What was delivered and what came of it.
        seed: Finds it again.
        examples: How many histories were played until it was found.
    """

    def __init__(self, complaint: str, story: Sequence[str], *, seed: int = 0, examples: int = 0) -> None:
        self.complaint, self.story = complaint, tuple(story)
        self.seed, self.examples = seed, examples
        lines = "\n".join(f"  {line}" for line in story[-STORY_LIMIT:])
        super().__init__(f"{complaint}\n{lines}\nFind it again: fuzz_driver(..., seed={seed})")


@define
class _History:
    """One history of a driver, with the machine beside it."""

    driver: Drives
    obeyed: list[Effect]
    owned: bool
    twin: Session
    story: list[str] = field(factory=list)
    orders: dict[int, Order] = field(factory=dict)
    answered: dict[int, Event] = field(factory=dict)
    waiting: set[int] = field(factory=set)
    timer: StartTimer | None = None
    dies_at: int | None = None
    _clients: int = 0
    _at: float = 0.0

    def moves(self) -> Iterator[Callable[[], None]]:
        """What may happen next."""
        if self._clients < CLIENTS:
            for body in ("A", "B"):
                yield lambda body=body: self._request(SeedRequested, body)  # type: ignore[misc]
                yield lambda body=body: self._request(ActivateRequested, body)  # type: ignore[misc]
            yield lambda: self._request(CloseRequested, "")
        for order in list(self.orders.values()):
            for kind in sorted(ANSWERS[type(order)], key=lambda kind: kind.__name__):
                for answer in variants(kind, order.number):
                    yield lambda answer=answer: self.feed(answer)  # type: ignore[misc]
        for event in self.answered.values():
            yield lambda event=event: self.feed(event)  # type: ignore[misc]
        for waiter in sorted(self.waiting):
            yield lambda waiter=waiter: self._leave(waiter)  # type: ignore[misc]
        if self.timer is not None:
            yield self._ring
        yield self._restart

    def _now(self) -> float:
        self._at += 1.0
        return self._at

    def _request(self, kind: type, body: str) -> None:
        self._clients += 1
        waiter, at = self._clients, self._now()
        self.waiting.add(waiter)
        if kind is SeedRequested:
            self.feed(
                SeedRequested(at=at, waiter=waiter, body_digest=body, owned=self.owned, cookie=Cookie.ABSENT)
            )
        elif kind is ActivateRequested:
            self.feed(
                ActivateRequested(
                    at=at,
                    waiter=waiter,
                    body_digest=body,
                    cookie=Cookie.SAME,
                    path=Path.MATCHES,
                    run_timeout_s=60.0,
                )
            )
        else:
            self.feed(CloseRequested(at=at, waiter=waiter, cookie=Cookie.ABSENT, same_episode=True))

    def _leave(self, waiter: int) -> None:
        self.waiting.discard(waiter)
        self.feed(ClientGone(at=self._now(), waiter=waiter))

    def _ring(self) -> None:
        timer, self.timer = self.timer, None
        if timer is not None:
            self.feed(TIMER_EVENTS[timer.kind](at=self._now(), timer=timer.number))

    def _restart(self) -> None:
        self.orders.clear()
        self.waiting.clear()
        self.timer = None
        self.obeyed.clear()
        self.story.append("restart")
        try:
            self.driver.restart()
        except Death:
            self._die(Restarted(at=self._at))
            return
        self.twin, effects = step(self.twin, Restarted(at=self._at))
        self._compare(effects)

    def feed(self, event: Event) -> None:
        """Deliver an event to both."""
        event = evolve(event, at=self._at)
        self.story.append(_shown(event))
        self.obeyed.clear()
        try:
            self.driver.deliver(event)
            refused = False
        except NotAllowed:
            refused = True
        except Death:
            self._die(event)
            return
        try:
            self.twin, effects = step(self.twin, event)
        except NotAllowed:
            if not refused:
                self._complain("the machine refuses this event, and the driver took it")
            return
        if refused:
            self._complain("the machine takes this event, and the driver refused it")
        number = getattr(event, "order", None)
        if number in self.orders:
            self.answered = {number: event}
            del self.orders[number]
        self._compare(effects)

    def _die(self, event: Event) -> None:
        """It died while it obeyed: the event was kept before, or it is lost."""
        self.story.append("  it dies while it obeys the effects")
        self.dies_at = None
        self.twin, _ = step(self.twin, event)
        self._restart()

    def _compare(self, effects: tuple[Effect, ...]) -> None:
        self.story += [f"  {_shown(effect)}" for effect in self.obeyed]
        expected, got = [_plain(each) for each in effects], [_plain(each) for each in self.obeyed]
        if expected != got:
            wanted = ", ".join(map(_shown, effects)) or "nothing"
            self._complain(f"the machine ordered {wanted}; the driver obeyed something else")
        difference = _difference(self.driver.snapshot(), self.twin)
        if difference is not None:
            self._complain(difference)
        for effect in effects:
            self._note(effect)

    def _go_on(self) -> None:
        """Make the usual move."""
        for order in self.orders.values():
            for kind in GOOD_ANSWERS:
                if kind in ANSWERS[type(order)]:
                    self.feed(next(variants(kind, order.number)))
                    return
        usual = {"NEW": SeedRequested, "READY": ActivateRequested}
        self._request(usual.get(self.twin.phase.value, CloseRequested), "A")

    def _note(self, effect: Effect) -> None:
        if isinstance(effect, Reply):
            self.waiting.discard(effect.waiter)
        elif isinstance(effect, StartTimer):
            self.timer = effect
        else:
            if isinstance(effect, StopHarness):
                self.orders = {
                    number: order
                    for number, order in self.orders.items()
                    if not isinstance(order, Launch | AwaitReceipt)
                }
            self.orders[effect.number] = effect

    def _complain(self, complaint: str) -> None:
        raise DriverFault(complaint, self.story)

    def follow(self, choices: Sequence[int], deaths: Sequence[int]) -> None:
        """Make one move for each number; at some of them the driver dies at its first effect."""
        for index, choice in enumerate(choices):
            self.dies_at = 0 if index in deaths else None
            if choice % 4 < USUAL:
                self._go_on()
            else:
                open_moves = list(self.moves())
                open_moves[choice // 4 % len(open_moves)]()
        self.dies_at = None


def fuzz_driver(make_driver: MakeDriver, *, examples: int = 500, seed: int | None = None) -> int:
    """Fuzz a driver with histories of clients, answers, timers and deaths.

    Args:
        make_driver: Makes a fresh driver for each history.
        examples: How many histories to play.
        seed: Where to begin; a random one by default.

    Returns:
        How many histories were played.

    Raises:
        DriverFault: The driver did something else than the machine; the shortest history that was found.
    """
    chosen = secrets.randbits(32) if seed is None else seed
    played, first, last = 0, 0, None

    def one(choices: list[int], deaths: list[int], owned: bool) -> None:
        nonlocal played, first, last
        played += 1
        try:
            _history(make_driver, owned).follow(choices, deaths)
        except DriverFault as fault:
            first, last = first or played, fault
            raise

    numbers = st.integers(0, 10_000)
    test = hypothesis.given(
        choices=st.lists(numbers, max_size=MOVES_LIMIT),
        deaths=st.lists(st.integers(0, MOVES_LIMIT), max_size=2),
        owned=st.booleans(),
    )(one)
    test = hypothesis.seed(chosen)(
        hypothesis.settings(
            max_examples=examples,
            database=None,
            deadline=None,
            print_blob=False,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            verbosity=hypothesis.Verbosity.quiet,
        )(test)
    )
    try:
        test()
    except DriverFault:
        assert last is not None
        raise DriverFault(last.complaint, last.story, seed=chosen, examples=first) from None
    return played


def _history(make_driver: MakeDriver, owned: bool) -> _History:
    obeyed: list[Effect] = []
    histories: list[_History] = []

    def obey(effect: Effect) -> None:
        if histories and histories[0].dies_at == len(obeyed):
            raise Death
        obeyed.append(effect)

    driver = make_driver(obey)
    histories.append(_History(driver=driver, obeyed=obeyed, owned=owned, twin=driver.snapshot()))
    return histories[0]


def _plain(effect: Effect) -> Effect:
    """Without what depends on the driver's own clock."""
    if isinstance(effect, Reply | StartTimer | CancelPending):
        return effect
    return evolve(effect, timeout_s=None)


def _difference(its: Session, machines: Session) -> str | None:
    """Where the driver's session is not the machine's, but for times of the driver's own clock."""
    for name, right in asdict(machines, recurse=False).items():
        found = getattr(its, name)
        if name != "deadline_at" and found != right:
            return f"the driver's session has {name} {_shown(found)}, the machine's has {_shown(right)}"
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 160 else f"{text[:157]}..."
