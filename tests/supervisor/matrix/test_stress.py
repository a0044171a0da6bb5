"""Stop after stop on a crowded machine: nobody is missed, and nobody else is hit."""

from collections import Counter

import pytest

from inspan_core.errors import HarnessTerminationError

from .bench import Budgets, Violation
from .relay import CONFIRMED, what_is_left
from .rules import ADOPTED, GROUP, UNDERWAY

DETACHED = 300
SPARE = 18  # What the limit leaves for the sandbox's own, the fork loops and the run while it is stopped.
ROOM = 60  # What it leaves besides for those who prepare and look: they may not fail for want of a pid.
LIMIT_WAS_HIT = "limit_was_hit"
BUDGETS = Budgets(run_s=120.0, grace_s=0.1, cleanup_s=20.0, receipt_s=40.0)
PROCESSES = [
    {"name": "child", "place": GROUP, "above": None},
    {"name": "tool", "place": UNDERWAY, "above": None},
    {"name": "service", "place": ADOPTED, "above": None},
]


async def crowd(bench):
    """300 detached processes and a fork loop of somebody else."""
    await bench.prepare(strangers=DETACHED)
    storm = [bench.python, "-I", "-S", f"{bench.root}/storm.py", "stranger", f"{bench.root}/{LIMIT_WAS_HIT}"]
    await bench.add_strangers(1, storm)


async def one_stop(bench):
    """Returns what came of it; raises Violation where it breaks a promise."""
    session = await bench.session()
    await session.stage([bench.python, "-I", "-S", f"{bench.root}/storm.py", "harness"], BUDGETS)
    async with session.launched() as launch:
        ready = await session.observe("ready", processes=PROCESSES, is_stopped=False)
        try:
            with bench.limited(DETACHED + SPARE):
                receipt = await session.stop(BUDGETS)
        except Violation as negative:
            if not isinstance(negative.__cause__, HarnessTerminationError):
                raise
            return f"negative: {negative}"
        await launch.exit_code()
        left = await what_is_left(session, ready["known"])
    if receipt.timed_out or receipt.return_code != -15:
        raise Violation(f"{receipt}, expected -15: the harness obeys SIGTERM")
    return left


@pytest.mark.sandbox
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stops", [20, pytest.param(200, marks=pytest.mark.full)])
def test_stops_among_300_others_with_fork_loops_and_a_pid_limit_nearly_reached(portal, make_sandbox, stops):
    bench = make_sandbox("bubblewrap", pids=DETACHED + SPARE + ROOM)
    portal.call(crowd, bench)
    seen = Counter(portal.call(one_stop, bench) for _ in range(stops))
    assert not [what for what in seen if what.startswith("negative")] and seen[CONFIRMED], seen
    hit = portal.call(
        lambda: bench.sandbox.exec(["test", "-e", f"{bench.root}/{LIMIT_WAS_HIT}"], timeout_s=30)
    )
    assert hit.exit_code == 0, "the limit of processes was never reached"
