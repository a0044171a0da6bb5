"""Which ready task goes next: in order, but for a few chosen delays, or shuffled by a number.

Most races need few surprises: one task that is held back while others go on. So a schedule is a short list of
delays, which reads well and shrinks well; the shuffled kind finds what needs many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from attrs import frozen

from inspan_runtime.testing.scheduler import task_of


@frozen(kw_only=True)
class Delay:
    """At one decision, the task whose turn it is is held back.

    Attributes:
        decision: Which decision, counted from the server's start (a decision: more than one task is ready).
        turns: How many later decisions it is passed over.
    """

    decision: int
    turns: int


@frozen(kw_only=True)
class Schedule:
    """A whole schedule.

    Attributes:
        delays: The surprises.
        shuffle: 0: in order; else every decision is drawn from a generator that begins with this number.
    """

    delays: tuple[Delay, ...] = ()
    shuffle: int = 0


class Scheduler:
    """Chooses by a schedule; one for all servers of a world.

    Args:
        schedule: What to follow.
        say: Told of each task that is held back.
    """

    def __init__(self, schedule: Schedule, say: Callable[[str], None]) -> None:
        self._delays = {delay.decision: delay.turns for delay in schedule.delays}
        self._random = Random(schedule.shuffle) if schedule.shuffle else None
        self._held: dict[asyncio.Task[Any], int] = {}
        self._say = say
        self.decisions = 0

    def __call__(self, steps: Sequence[asyncio.Handle]) -> int:
        """The index of the step that goes next."""
        self.decisions += 1
        if self._random is not None:
            return self._random.randrange(len(steps))
        turns = self._delays.get(self.decisions)
        first = task_of(steps[0])
        if turns and first is not None:
            self._held[first] = turns
            self._say(f"held back for {turns} turns: {doing(first)}")
        for index, step in enumerate(steps):
            task = task_of(step)
            left = 0 if task is None else self._held.get(task, 0)
            if task is None or not left:
                return index
            self._held[task] = left - 1
        return 0


def doing(task: asyncio.Task[Any]) -> str:
    """Where a task is, from its outermost to its innermost function of ours."""
    names: list[str] = []
    step: Any = task.get_coro()
    while step is not None:
        frame = getattr(step, "cr_frame", None)
        if frame is not None and "inspan" in frame.f_code.co_filename:
            name = step.__qualname__.replace("<locals>.", "")
            if not name.startswith("AgentService._spawn"):
                names.append(name)
        step = getattr(step, "cr_await", None)
    return " > ".join(names) or "a task that has not begun"
