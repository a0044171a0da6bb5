"""Kernels that lack what the supervisor would like to use: the same ending, or an honest "not proven"."""

import os
import subprocess

import pytest

from inspan_supervisor import supervisor_source

# Each edit makes the file ask for something that no kernel has, and get the error of a kernel without it.
LACKING = {
    "no children file": [(b"/children", b"/no-such-file")],  # CONFIG_PROC_CHILDREN is not set.
    "no pidfd": [(b"os.pidfd_open(", b"os.pidfd_that_never_was(")],  # Linux before 5.3, or Python 3.8.
    "no directory notification": [(b"fcntl.F_NOTIFY", b"4242")],  # CONFIG_DNOTIFY is not set.
    "no locks": [(b"fcntl.LOCK_EX | fcntl.LOCK_NB", b"4242")],  # Some network file systems.
}
LACKING["nothing of these"] = [edit for edits in LACKING.values() for edit in edits]

CHILDREN = """
(setsid sh -c 'echo $$ > s; mv s service.pid; exec sleep 1000' &)
setsid sh -c 'setsid sleep 1000 & sleep 1000 & echo $$ > t; mv t tool.pid; wait' &
sh -c 'echo $$ > m; mv m member.pid; exec sleep 1000' &
"""


def lacking(supervised, what):
    source = supervisor_source()
    for old, new in LACKING[what]:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    (supervised.dir / "process_supervisor.py").write_bytes(source)


@pytest.mark.parametrize("what", sorted(LACKING))
def test_a_stop_ends_the_same_on_lesser_kernels(supervised, kit, what):
    lacking(supervised, what)
    supervisor = supervised.run(CHILDREN + "wait", grace_s=0.5)
    service, _, _ = (supervised.pid(name) for name in ("service", "tool", "member"))
    kit.adopted(service, supervisor.pid)
    supervised.stop()
    assert supervised.receipt() == {
        "cleanup_confirmed": True, "return_code": -15, "error": None, "timed_out": False}  # fmt: skip
    assert supervised.living() == {service}
    assert supervised.reported("preserved") == {service}


@pytest.mark.parametrize("what", sorted(LACKING))
def test_a_natural_exit_ends_the_same_on_lesser_kernels(supervised, kit, what):
    lacking(supervised, what)
    supervised.run(CHILDREN + "while [ ! -e go ]; do sleep 0.01; done; exit 3")
    service, tool, member = (supervised.pid(name) for name in ("service", "tool", "member"))
    (supervised.work / "go").touch()
    receipt = supervised.receipt()
    assert (receipt["cleanup_confirmed"], receipt["return_code"]) == (True, 3)
    assert member not in supervised.living() and {service, tool} <= supervised.living()
    assert {service, tool} <= supervised.reported("preserved") | supervised.reported("unfinished")


# PID 1 keeps all capabilities and the supervisor has none: so hidepid hides the one from the other, as it
# hides the processes of other users, also where a test has only one user.
# Group 0, in which root is, would see all by default.
OPTIONS = "hidepid=2,gid=1" if os.geteuid() == 0 else "hidepid=2"
HIDDEN = f"""
mount -t proc -o {OPTIONS} proc /proc || exit 99
setpriv --bounding-set=-all --inh-caps=-all "$@"
exit $?
"""
UNSHARE = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
UNSHARE += ["--mount", "--pid", "--fork", "--kill-child"]


@pytest.mark.parametrize(
    ("children", "ending", "confirmed"),
    [
        ("", "natural", True),
        (CHILDREN, "natural", True),
        ("", "close", True),
        ("sleep 1000 &\n", "close", True),
        (CHILDREN, "close", False),
    ],
    ids=["alone", "with children", "alone at a stop", "with a member at a stop", "with a service at a stop"],
)
def test_where_processes_are_hidden_only_the_kernels_own_word_counts(supervised, children, ending, confirmed):
    """hidepid: nobody left is known without /proc; who is left cannot be told, and that fails closed."""
    last = "exit 0" if ending == "natural" else ": > up\nwhile :; do sleep 1000; done"
    wait = "while [ ! -e tool.pid ]; do :; done\n" if children == CHILDREN else ""
    supervised.command(["sh", "-c", children + wait + last], cleanup_timeout_s=2, grace_s=0.3)
    file = str(supervised.dir / "process_supervisor.py")
    inside = ["sh", "-c", HIDDEN, "sh", supervised.python, "-I", "-S", file, str(supervised.dir)]
    supervised.processes.append(subprocess.Popen([*UNSHARE, *inside]))
    if ending == "close":
        supervised.wait_file("up")
        supervised.stop()
    receipt = supervised.receipt()
    assert receipt["cleanup_confirmed"] is confirmed, receipt
    if not confirmed:
        assert "process state is unreadable" in receipt["error"]


def test_the_technique_hides_pid_1(tmp_path):
    """The check above can fail: without hidepid the same look finds PID 1."""
    seen = []
    for options in ("rw", OPTIONS):
        script = HIDDEN.replace(OPTIONS, options)
        argv = [*UNSHARE, "sh", "-c", script, "sh", "sh", "-c", "[ -e /proc/1 ] && echo seen || echo hidden"]
        seen.append(subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout.strip())
    assert seen == ["seen", "hidden"]
