"""A relay's runner that was adopted before the stop and cannot fork: spared as a service is, and told.

The kernel's limit on the processes of a user holds it still. Whoever is the runner of the moment from the
record before the first signal until the end is a process that was adopted before the stop, and nothing else.
"""

import json
import shlex
import sys

import pytest

# A limit of no process more binds everybody but the host's root: every fork() fails with EAGAIN.
RUNNER = """
import os, resource, time
until = time.monotonic() + 120  # Whoever escapes a test that fails does not run for ever.
os.setsid()
os.fork() and os._exit(0)
os.open("lifeline", os.O_WRONLY)
blocked, go = os.open("blocked", os.O_CREAT | os.O_WRONLY), os.open("go", os.O_CREAT | os.O_RDONLY)
with open("new", "w") as file:
    file.write(str(os.getpid()))
os.rename("new", "runner.pid")
limits = resource.getrlimit(resource.RLIMIT_NPROC)
resource.setrlimit(resource.RLIMIT_NPROC, (0, limits[1]))
if os.geteuid() == 0:
    try:
        os.setresuid(65534, 65534, 65534)
    except OSError:
        pass  # In a user namespace of one user the root is bound as well.
while time.monotonic() < until:
    try:
        os.fork() and os._exit(0)
    except BlockingIOError:
        os.fstat(blocked).st_size or os.write(blocked, b".")
    if os.fstat(go).st_size:
        resource.setrlimit(resource.RLIMIT_NPROC, limits)
"""
START = f"{shlex.quote(sys.executable)} -I -S -c {shlex.quote(RUNNER)}; "


@pytest.fixture
def runner(supervised, kit):
    """Start the harness; returns the runner's pid when it has been adopted and could not fork."""

    def start(script, **fields):
        supervisor = supervised.run(START + script, **fields)
        pid = supervised.pid("runner")
        kit.adopted(pid, supervisor.pid)
        kit.eventually(lambda: (supervised.work / "blocked").stat().st_size, "the runner is blocked")
        return pid

    return start


@pytest.mark.parametrize("ending", ["close", pytest.param("deadline", marks=pytest.mark.full)])
def test_a_runner_that_cannot_fork_from_before_the_stop_until_the_end_is_preserved_and_told(
    supervised, runner, lifeline, ending
):
    pid = runner("exec sleep 1000", timeout_s=8 if ending == "deadline" else 60)
    if ending == "close":
        supervised.stop()
    assert supervised.receipt() == {
        "cleanup_confirmed": True, "return_code": -15, "error": None,
        "timed_out": ending == "deadline"}  # fmt: skip
    assert supervised.living() == {pid} and lifeline.is_held()
    report = supervised.report()
    [entry] = report["preserved"]
    assert entry["pid"] == pid
    assert entry["reason"] in ("adopted before the end", "adopted just before the end")
    assert report["unfinished"] == [] and pid not in supervised.reported("killed")


def test_with_drain_all_it_dies(supervised, runner, lifeline):
    pid = runner("exec sleep 1000", drain="all")
    supervised.stop()
    assert supervised.receipt()["cleanup_confirmed"]
    assert not lifeline.is_held() and supervised.living() == set()
    assert pid in supervised.reported("killed") and supervised.reported("preserved") == set()


def test_one_that_comes_to_fork_while_the_ending_goes_on_is_hunted_down(supervised, runner, lifeline):
    """What was recorded is one process: whoever it starts and leaves is new, and so is all that follows."""
    pid = runner("trap 'echo > go' TERM; : > up; while :; do sleep 1000 & wait; done", grace_s=0.5)
    supervised.wait_file("up")
    supervised.stop()
    assert supervised.receipt()["cleanup_confirmed"]
    assert not lifeline.is_held() and supervised.living() == set()
    report = json.loads((supervised.dir / "processes.json").read_text())
    assert report["preserved"] == report["unfinished"] == []
    assert supervised.reported("killed") - {pid}, "nobody came after the one that was recorded"
