"""What one `step` of the machine costs, over recorded histories of real sessions (benchmarks/data).

    python benchmarks/step.py                  inspan's machine, and others where they are installed
    python benchmarks/step.py --with-others    installs the others into a throw-away environment first

The others are `transitions` and `python-statemachine`, which run the same guards, targets, handlers and data
(see other_machines/) in the same run, one round of each in turn, and must give the same effects. Figures
are processor time of events; making a session is timed apart. Also: a replay of 10,000 events, and the memory
of a session that is live and of one that is closed.
"""

import gc
import importlib.metadata
import json
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from other_machines import packages

from inspan_core.events import Event
from inspan_core.journal import decode_event
from inspan_core.machine import fold, new_session, step
from inspan_core.session import Phase, Session

HERE = Path(__file__).resolve().parent
HISTORIES = HERE / "data/histories.json"
ROUNDS = 60
SESSIONS_PER_ROUND = 20
OTHERS = {
    "transitions": packages.with_transitions,
    "python-statemachine": packages.with_python_statemachine,
}


def histories() -> dict[str, list[Event]]:
    """Read the recorded histories by name."""
    stored = json.loads(HISTORIES.read_text())
    return {each["name"]: [decode_event(event) for event in each["events"]] for each in stored}


def check_others(machines: dict[str, type], recorded: dict[str, list[Event]]) -> None:
    """Make sure that all give the same effects and come to the same facts."""
    for package, machine in machines.items():
        for name, events in recorded.items():
            session, other = new_session(name), machine(name)
            for event in events:
                session, effects = step(session, event)
                if tuple(other.feed(event)) != effects:
                    raise SystemExit(f"{package}: {name}: {event} gave other effects than {effects}")
            if other.draft.freeze() != session:
                raise SystemExit(f"{package}: {name} came to other facts")
            other.forget()


Make = Callable[[str], Any]
Play = Callable[[Any, list[Event]], object]


def timed_us(make: Make, play: Play, recorded: dict[str, list[Event]], times: int) -> tuple[float, float]:
    """Play every history some times.

    Returns:
        Microseconds of processor time for an event, and for making a session.
    """
    begun = time.process_time_ns()
    sessions = [(make(name), events) for name, events in recorded.items() for _ in range(times)]
    made = time.process_time_ns()
    for session, events in sessions:
        play(session, events)
    ended = time.process_time_ns()
    events_played = times * sum(len(events) for events in recorded.values())
    for session, _ in sessions:
        if not isinstance(session, Session):
            session.forget()
    return (ended - made) / 1000 / events_played, (made - begun) / 1000 / len(sessions)


def feed_all(machine: Any, events: list[Event]) -> None:
    """Play one session with another package's machine."""
    for event in events:
        machine.feed(event)


def compare(machines: dict[str, type], recorded: dict[str, list[Event]]) -> None:
    """Time all in turn, and print the medians and their ratios to ours."""
    works: dict[str, tuple[Make, Play, int]] = {"inspan_core": (new_session, fold, SESSIONS_PER_ROUND)}
    for package, machine in machines.items():
        works[package] = machine, feed_all, 1
    rounds: dict[str, list[tuple[float, float]]] = {package: [] for package in works}
    for _ in range(ROUNDS):
        for package, (make, play, times) in works.items():
            rounds[package].append(timed_us(make, play, recorded, times))
    ours = statistics.median(event_us for event_us, _ in rounds["inspan_core"])
    for package, figures in rounds.items():
        events_us = [event_us for event_us, _ in figures]
        median, best = statistics.median(events_us), min(events_us)
        made = statistics.median(made_us for _, made_us in figures)
        print(
            f"{package:20} {median:7.1f} us an event (median; best {best:.1f}), {1e6 / median:,.0f} events a "
            f"second, {median / ours:.1f} times ours; {made:,.0f} us to make a session"
        )


def replay(recorded: dict[str, list[Event]]) -> None:
    """Fold 10,000 events, as a restarted server does."""
    left, begun = 10_000, time.process_time()
    while left > 0:
        for name, events in recorded.items():
            fold(new_session(name), events[:left])
            left -= len(events)
    print(f"replay of 10,000 events: {(time.process_time() - begun) * 1000:.0f} ms")


def memory(recorded: dict[str, list[Event]]) -> None:
    """Measure what a session keeps alive: while its harness runs, and closed with its answer retained."""
    for label, phase in (("live", Phase.ACTIVE), ("closed", Phase.CLOSED)):
        events = list(recorded["borrowed"])
        while fold(new_session("probe"), events).phase is not phase:
            events.pop()
        gc.collect()
        tracemalloc.start()
        kept: list[Session] = [fold(new_session(f"session-{number}"), events) for number in range(1000)]
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        print(f"memory of a {label} session: {size / len(kept):,.0f} bytes")


def with_others() -> int:
    """Run this again in a throw-away environment that has the other packages."""
    with tempfile.TemporaryDirectory() as folder:
        python = f"{folder}/venv/bin/python"
        subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True, timeout=300)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *OTHERS]
        subprocess.run([*command, str(HERE.parent / "core")], check=True, timeout=600)
        return subprocess.run([python, str(HERE / "step.py")], timeout=600, check=False).returncode


def main() -> int:
    """Measure and print."""
    if sys.argv[1:] == ["--with-others"]:
        return with_others()
    recorded = histories()
    sizes = ", ".join(f"{name} {len(events)}" for name, events in recorded.items())
    print(f"events of the recorded sessions: {sizes}")
    machines: dict[str, type] = {}
    for package, make in OTHERS.items():
        try:
            machines[package] = make()
        except ImportError:
            print(f"SKIPPED: {package} is not installed; see --with-others", file=sys.stderr)
        else:
            print(f"{package} {importlib.metadata.version(package)}")
    check_others(machines, recorded)
    compare(machines, recorded)
    replay(recorded)
    memory(recorded)
    return 0


if __name__ == "__main__":
    sys.exit(main())
