"""Moments that a race hits once in a thousand runs, held still: something happens between two steps."""

import json
import os
import subprocess
import sys

import pytest

from inspan_supervisor import supervisor_source

# Runs the real file, with one step more after the command was read: `MEANWHILE`, before the claim.
WITH_A_STEP_BETWEEN = """
import os, sys
path, directory, meanwhile = sys.argv[1:]
names = {"__name__": "supervisor"}
exec(compile(open(path).read(), path, "exec"), names)
read = names["read_command"]
def read_and_then(path):
    command = read(path)
    exec(meanwhile, {"os": os, "directory": directory})
    return command
names["read_command"] = read_and_then
sys.exit(names["main"](["", directory]))
"""


def run_with(supervised, meanwhile):
    supervised.command(["sh", "-c", 'touch "$WORK/ran"'])
    path = str(supervised.dir / "process_supervisor.py")
    argv = [supervised.python, "-I", "-S", "-c", WITH_A_STEP_BETWEEN, path, str(supervised.dir), meanwhile]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20)


def test_the_step_between_changes_nothing_by_itself(supervised):
    assert run_with(supervised, "").returncode == 0
    assert (supervised.work / "ran").exists()


def test_a_claim_that_another_launch_makes_meanwhile_wins(supervised):
    done = run_with(supervised, "open(directory + '/launch.claim', 'w').write('another')")
    assert done.returncode == 125 and "no claim" in done.stderr
    assert not (supervised.work / "ran").exists()
    left = {path.name for path in supervised.dir.iterdir()}
    assert left == {"process_supervisor.py", "command.json", "launch.claim"}  # Nothing of the loser's.
    assert (supervised.dir / "launch.claim").read_text() == "another"


def test_a_stop_that_comes_meanwhile_is_obeyed_and_said_because_its_maker_sees_the_claim(supervised):
    done = run_with(supervised, "open(directory + '/stop.request', 'w')")
    assert done.returncode == 125
    assert not (supervised.work / "ran").exists()
    receipt = json.loads((supervised.dir / "cleanup.json").read_text())
    assert (receipt["cleanup_confirmed"], receipt["return_code"]) == (True, None)
    assert "a stop came before the launch" in receipt["error"]


def test_a_directory_that_is_retired_meanwhile_launches_nothing(supervised):
    done = run_with(supervised, "os.mkdir(directory + '.retired')")
    assert done.returncode == 125 and "retired" in done.stderr
    assert not (supervised.work / "ran").exists()


@pytest.fixture
def supervisor():
    """The file's own functions, in this process."""
    names = {"__name__": "supervisor"}
    exec(compile(supervisor_source(), "process_supervisor.py", "exec"), names)
    return names


class Stranger:
    """A process that is not our child, so that its pid may be given away at any time; it answers."""

    def __init__(self):
        script = "exec 3<&0; cat <&3 & echo $!; wait"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.parent = subprocess.Popen(["sh", "-c", script], bufsize=1, **pipes)
        self.pid = int(self.parent.stdout.readline())

    def answers(self):
        """Whether it works: one that was just killed may still look alive for a moment."""
        self.parent.stdin.write("are you there?\n")
        self.parent.stdin.flush()
        return self.parent.stdout.readline() == "are you there?\n"


@pytest.fixture
def stranger():
    one = Stranger()
    yield one
    one.parent.communicate(timeout=10)


@pytest.mark.parametrize("pidfds", [True, False])
def test_a_pid_that_was_given_to_another_process_is_not_killed(
    supervisor, kit, stranger, pidfds, monkeypatch
):
    if not pidfds:
        monkeypatch.delattr("os.pidfd_open")
    process = supervisor["look_up"](stranger.pid)
    process.identity = (stranger.pid, process.identity[1] - 1)  # The one that we saw had started earlier.
    supervisor["kill"](process)
    assert stranger.answers()
    supervisor["kill"](supervisor["look_up"](stranger.pid))
    kit.eventually(lambda: not kit.lives(stranger.pid), "the right one dies")


def test_a_pid_that_a_service_had_before_spares_nobody(supervisor):
    """The record holds pids with start times: who gets the pid of a dead service is no service."""
    run = supervisor["Run"]("/nowhere", {"drain": "seed"})
    run.drains = True
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
    identity = supervisor["look_up"](child.pid).identity
    run.spared = {identity}
    assert run.strike([supervisor["look_up"](child.pid)]) == 0
    assert child.poll() is None
    run.spared = {(child.pid, identity[1] - 1)}
    assert run.strike([supervisor["look_up"](child.pid)]) == 1
    assert child.wait(20) == -9


def test_a_look_during_which_the_harness_ended_makes_no_services(supervisor):
    """Its last tools become our children in that moment, and must not pass for adopted before the end."""
    run = supervisor["Run"]("/nowhere", {})
    harness = subprocess.Popen(["sleep", "60"])
    tool = subprocess.Popen(["sleep", "60"])  # Ours from the start, as one that was just adopted.
    run.leader = harness.pid
    run.note_adopted(1.0)
    assert {pid for pid, _ in run.adopted} & {harness.pid, tool.pid} == {tool.pid}
    run.adopted = {}
    pids = run.child_pids

    def harness_ends_meanwhile():
        harness.kill()
        os.waitid(os.P_PID, harness.pid, os.WEXITED | os.WNOWAIT)
        return pids()

    run.child_pids = harness_ends_meanwhile
    run.note_adopted(2.0)
    assert run.adopted == {}
    for process in (harness, tool):
        process.kill()
        process.wait(20)


def test_what_is_not_known_stays_unknown_when_children_are_reaped(supervisor):
    run = supervisor["Run"]("/nowhere", {})
    run.reap_all()
    assert run.spared is None


def test_a_groups_number_is_forgotten_with_the_group(supervisor):
    """Once its last member is gone, the kernel may give the number to somebody else's group."""
    run = supervisor["Run"]("/nowhere", {"drain": "seed", "cleanup_timeout_s": 5})
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    member = supervisor["look_up"](stranger.pid)
    run.group = stranger.pid
    assert run.touch_group() == stranger.pid
    run.group = None
    assert run.strike([member]) == 0 and stranger.poll() is None
    run.group = stranger.pid
    assert run.strike([member]) == 1
    assert stranger.wait(20) == -9
    assert supervisor["attempt"](ProcessLookupError, run.touch_group) is None


FIRST_THREAD_ENDS = """
import ctypes, os, threading
def write():
    os.rename("started.new", "started")
    while True:
        open("written", "a").write("x")
open("started.new", "w").close()
threading.Thread(target=write).start()
ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)
"""


def test_a_process_whose_first_thread_has_ended_is_not_dead(supervised, kit):
    """Its state says Z, and it goes on writing with the others."""
    (supervised.work / "tool.py").write_text(FIRST_THREAD_ENDS)
    supervised.run(
        f"setsid {supervised.python} -I -S tool.py & echo $! > n; mv n tool.pid; wait", grace_s=0.2
    )
    supervised.wait_file("started")
    pid = supervised.pid("tool")
    kit.eventually(lambda: kit.stat_of(pid)[0] == "Z", "its first thread has ended")
    written = supervised.work / "written"
    size = written.stat().st_size
    kit.eventually(lambda: written.stat().st_size > size, "the other thread writes")
    supervised.stop()
    assert supervised.receipt()["cleanup_confirmed"]
    assert kit.stat_of(pid) is None
    assert pid in supervised.reported("killed")


def test_a_circle_in_a_table_that_was_read_while_pids_changed_hands_is_walked_once(supervisor):
    """The table is read row by row: a pid that is given away meanwhile can stand below its own child."""

    def row(pid, parent):
        return supervisor["Process"](pid, b"%d (x) S %d 1 1 0 -1 0" % (pid, parent) + b" 1" * 14)

    table = [row(10, 20), row(20, 10), row(30, 10), row(40, 1)]
    found = supervisor["below"](table, [table[0]])
    assert {process.pid for process in found} == {10, 20, 30}
