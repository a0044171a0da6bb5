"""The phases of one episode as they happen: what the episode's servers report, put into one line of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, field, frozen

from inspan_server.environment.episode import StepBegan, StepEnded

Clock = Callable[[], float]

# The agent's orders as a reader would say them; the rest are said by their own name in lower case.
RUN_PHASES = {
    "CONNECTING": "connect to the sandbox",
    "INSTALLING": "install the harness",
    "QUEUED": "wait for a slot",
    "STAGING": "stage the input",
    "RUNNING": "run the harness",
    "AWAITING": "await the receipt",
    "STOPPING": "stop the harness",
    "COLLECTING": "collect artifacts",
    "PARSING": "parse artifacts",
    "RELEASING_EXEC": "release the exec",
    "CANCELLING": "cancel",
    "REMOVING_FILES": "remove session files",
    "DISCONNECTING": "disconnect",
    "STOPPING_SANDBOX": "stop the sandbox",
}
RESOURCES_STEPS = {
    "create_sandbox": "create the sandbox",
    "prepare_task": "prepare the task",
    "run_tests": "run the tests",
    "stop_sandbox": "stop the sandbox",
}
REST = "REST"


@frozen(kw_only=True)
class Entry:
    """One phase.

    Attributes:
        step: The call of the episode to which it belongs, or ``demo``.
        started_ms: Since the timeline began.
        failure: Why it failed, or None.
    """

    step: str
    phase: str
    started_ms: float
    duration_ms: float
    failure: str | None = None


@define
class Timeline:
    """Phases one after the other; each ends when the next begins.

    Args:
        clock: Monotonic seconds.
        on_entry: Called with each phase when it has ended.
    """

    clock: Clock
    on_entry: Callable[[Entry], None] = lambda entry: None
    entries: list[Entry] = field(factory=list, init=False)
    _began: float = field(init=False)
    _step: str = field(default="demo", init=False)
    _phase: str | None = field(default=None, init=False)
    _phase_began: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._began = self.clock()

    @property
    def elapsed_ms(self) -> float:
        return round((self.clock() - self._began) * 1000, 1)

    @property
    def under_way(self) -> tuple[str, float] | None:
        """The phase that has not ended, and for how many seconds; None between two phases."""
        return None if self._phase is None else (self._phase, self.clock() - self._phase_began)

    def begin(self, phase: str) -> None:
        """A phase begins; the one before it has ended."""
        self.end()
        self._phase, self._phase_began = phase, self.clock()

    def end(self, failure: str | None = None) -> None:
        """The phase that is under way, if any, has ended."""
        if self._phase is None:
            return
        now = self.clock()
        entry = Entry(
            step=self._step,
            phase=self._phase,
            started_ms=round((self._phase_began - self._began) * 1000, 1),
            duration_ms=round((now - self._phase_began) * 1000, 1),
            failure=failure,
        )
        self._phase = None
        self.entries.append(entry)
        self.on_entry(entry)

    def on_step(self, event: StepBegan | StepEnded) -> None:
        """Follow the Environment Server."""
        if isinstance(event, StepBegan):
            self.begin(event.step.replace("_", " "))
            self._step = event.step
            return
        if self._phase is None and event.failure is not None:
            self.begin(event.step.replace("_", " "))
        self.end(event.failure)

    def on_resources(self, session_id: str, step: str) -> None:
        """Follow the Resources Server."""
        self.begin(RESOURCES_STEPS.get(step, step))

    def on_transition(self, transition: Mapping[str, Any]) -> None:
        """Follow the Agent Server's session."""
        run = str(transition["run"])
        if run == REST:
            self.end()
            return
        phase = RUN_PHASES.get(run, run.lower().replace("_", " "))
        if phase != self._phase:
            self.begin(phase)
