"""What one `step` of the machine costs: the mean over all events of a whole session, in microseconds.

    python benchmarks/step.py

Plays a borrowed and an owned episode from seed to the end of the retention window, over and over, and prints
the best and the median of many rounds of CPU time.
"""

import statistics
import time

from inspan_core.events import Disconnected, Event, FilesRemoved, SandboxStopped, WindowEnded
from inspan_core.machine import fold, new_session
from inspan_core.session import Phase
from inspan_core.testing.player import finished

ROUNDS = 300
SESSIONS_PER_ROUND = 20


def episode(*, owned: bool) -> list[Event]:
    """List the events of a whole healthy session."""
    player = finished(owned=owned)
    player.close()
    if owned:
        player.answer(SandboxStopped)
    else:
        player.answer(FilesRemoved)
        player.answer(Disconnected)
    player.close()
    player.feed(WindowEnded(at=0.0, timer=player.session.timer))
    if player.session.phase is not Phase.NEW:
        raise SystemExit(f"the episode ended in phase {player.session.phase.value}, not in NEW")
    return player.events


def round_us(events: list[Event]) -> float:
    """Time one round; the mean of its steps in microseconds."""
    begun = time.process_time_ns()
    for _ in range(SESSIONS_PER_ROUND):
        fold(new_session("s1"), events)
    return (time.process_time_ns() - begun) / 1000 / SESSIONS_PER_ROUND / len(events)


def main() -> None:
    """Measure and print."""
    for name, owned in (("borrowed", False), ("owned", True)):
        events = episode(owned=owned)
        rounds = [round_us(events) for _ in range(ROUNDS)]
        best, median = min(rounds), statistics.median(rounds)
        print(f"{name}, {len(events)} events: {best:.1f} us best, {median:.1f} us median of {ROUNDS} rounds")


if __name__ == "__main__":
    main()
