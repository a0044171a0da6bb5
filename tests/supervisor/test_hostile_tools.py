"""Tools that trace, hold and freeze: a receipt that can be given is given, and nothing waits for them."""

import os
import shlex
import signal
import subprocess
import sys

import pytest

from inspan_supervisor import supervisor_source

TRACER = """
import ctypes, os, signal, sys
os.setsid()
libc = ctypes.CDLL(None)
parent, PTRACE_SEIZE = os.getppid(), 0x4206
while sys.argv[2:] and os.path.exists(f"/proc/{parent}/fd") and parent != int(open(sys.argv[2]).read()):
    pass
assert libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), 0, 0) == 0
open(os.environ["WORK"] + "/traced", "w").close()
while True:
    signal.pause()
"""
PIPE_HOLDER = """
import os, signal
os.setsid()
fds = f"/proc/{open(os.environ['DIR'] + '/supervisor.pid').read().strip()}/fd"
held = [os.open(f"{fds}/{fd}", os.O_RDWR) for fd in os.listdir(fds)
        if os.readlink(f"{fds}/{fd}").startswith("pipe:")]
assert held
open(os.environ["WORK"] + "/held", "w").close()
signal.pause()
"""


def program(text, *arguments):
    return f"{shlex.quote(sys.executable)} -I -S -c {shlex.quote(text)} {' '.join(arguments)}"


def may_trace():
    """Where a kernel lets nobody trace anything but his own children there is nothing to try."""
    try:
        scope = open("/proc/sys/kernel/yama/ptrace_scope").read().strip()
    except FileNotFoundError:
        return True
    return scope == "0" or (scope in "12" and os.geteuid() == 0)


@pytest.mark.parametrize("tracer", ["a tool", "a service"])
@pytest.mark.parametrize("ending", ["exit", "stop", "killed"])
def test_a_harness_whose_tracer_does_not_let_go_of_it_is_dead_all_the_same(supervised, kit, ending, tracer):
    """Its parent may not wait for it then, nor is told of its death; a group's number stays its own."""
    if not may_trace():
        pytest.skip("NO TRACING: this kernel lets nobody trace who is not its child")
    start = (
        f"({program(TRACER, '$$', '$DIR/supervisor.pid')} &);"
        if tracer == "a service"
        else f"{program(TRACER, '$$')} &"
    )
    last = "exit 3" if ending == "exit" else "exec sleep 1000"
    # Each signal would stop who is traced, also that of a child's end.
    script = f"{kit.report_pid} report h $$; {start} while [ ! -e $WORK/traced ]; do :; done; {last}"
    supervised.run(script, grace_s=0.2, env={"DIR": str(supervised.dir)})
    harness = supervised.pid("h")
    supervised.wait_file("traced")
    if ending == "stop":
        supervised.stop()
    if ending == "killed":
        os.kill(harness, signal.SIGKILL)
    assert supervised.receipt() == {
        "cleanup_confirmed": True, "return_code": 3 if ending == "exit" else -9, "error": None,
        "timed_out": False}  # fmt: skip
    left = supervised.reported("preserved") | supervised.reported("unfinished")
    assert supervised.living() == left
    assert len(left) == (0 if (ending, tracer) == ("stop", "a tool") else 1)


SEIZE_AND_HOLD = """
import ctypes, signal, sys
assert ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0
print("held", flush=True)
signal.pause()
"""


def test_a_look_during_which_somebody_died_in_a_tracers_hands_proves_nothing(kit):
    """Then no child becomes waitable, and yet its children become ours: behind the back of the look."""
    if not may_trace():
        pytest.skip("NO TRACING: this kernel lets nobody trace who is not its child")
    names = {"__name__": "supervisor"}
    exec(compile(supervisor_source(), "process_supervisor.py", "exec"), names)
    run = names["Run"]("/nowhere", {"drain": "seed", "cleanup_timeout_s": 20})
    runner = subprocess.Popen(["sleep", "60"])
    argv = [sys.executable, "-I", "-S", "-c", SEIZE_AND_HOLD, str(runner.pid)]
    tracer = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert tracer.stdout.readline() == b"held\n"
    run.drains, run.leader = True, 2**22
    run.spared = {one.identity for one in run.children(names["look"]()) if one.pid != runner.pid}
    look, late = names["look"], []

    def look_while_it_hands_over():
        if not late:
            runner.kill()
            kit.eventually(lambda: kit.stat_of(runner.pid)[0] == "Z", "the runner is dead, and not waitable")
            table = look()
            late.append(subprocess.Popen(["sleep", "60"]))  # Ours, as if it had been adopted from the runner.
            return table
        return look()

    names["look"] = look_while_it_hands_over
    try:
        assert run.drain(names["time"].monotonic() + 20)
        assert not kit.lives(late[0].pid), "the receipt would be confirmed, and the runner's child lives"
        assert kit.lives(tracer.pid)
    finally:
        for one in (tracer, *late, runner):
            one.kill()
            one.wait(20)
        tracer.stdout.close()


def test_an_exit_code_is_not_lost_where_the_launcher_ignores_its_childrens_deaths(supervised):
    """The disposition is inherited, and a kernel reaps for whoever ignores SIGCHLD."""
    supervised.command(["sh", "-c", "(setsid true &); exit 3"])
    supervised.launch(preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert supervised.receipt()["return_code"] == 3


def test_a_tool_that_holds_the_supervisors_pipe_open_does_not_hang_it(supervised):
    script = f"{program(PIPE_HOLDER)} & while [ ! -e $WORK/held ]; do sleep 0.01; done; exit 3"
    supervised.command(["sh", "-c", script], env={"DIR": str(supervised.dir)})
    supervised.launch()
    assert supervised.receipt() == {
        "cleanup_confirmed": True, "return_code": 3, "error": None, "timed_out": False}  # fmt: skip


def test_a_directory_that_is_retired_during_a_run_ends_it(supervised, kit):
    """Whoever gave the session up does not see to the harness any more."""
    supervised.run("touch $WORK/up; exec sleep 1000")
    supervised.wait_file("up")
    subprocess.run(
        ["sh", "-c", ': > "$1.retired"; mv "$1" "$1.removed"; rm -rf "$1.removed"', "sh", supervised.dir],
        check=True,
        timeout=10,
    )
    assert supervised.wait() == 125
    assert not supervised.living() and not supervised.dir.exists()


def test_a_row_that_was_read_while_pids_changed_hands_makes_no_stranger_ours(kit):
    """Its parent's pid was given to a tool of ours meanwhile; since then the stranger has another parent."""
    names = {"__name__": "supervisor"}
    exec(compile(supervisor_source(), "process_supervisor.py", "exec"), names)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    shell = subprocess.Popen(["sh", "-c", "exec 3<&0; cat <&3 & echo $!; wait"], **pipes)
    process = names["look_up"](int(shell.stdout.readline()))
    parent, process.parent = process.parent, 2**22
    names["kill"](process)
    shell.stdin.write("are you there?\n")
    assert shell.stdout.readline() == "are you there?\n"
    process.parent = parent
    names["kill"](process)
    kit.eventually(lambda: not kit.lives(process.pid), "it dies where the row is right")
    shell.communicate(timeout=10)
