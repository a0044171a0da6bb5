"""What is launched, what is refused, and that at most one launch into a directory takes effect."""

import json
import os
import subprocess

import pytest

GOOD = {"argv": ["true"], "env": {}, "timeout_s": 60, "cleanup_timeout_s": 10}
WITHOUT = object()
MALFORMED = [
    ("not JSON", "", "not JSON"),
    ("cut off", '{"argv": ["true"], "env"', "command.json"),
    ("trailing", json.dumps(GOOD) + "}", "not JSON"),
    ("NaN", json.dumps({**GOOD, "timeout_s": float("nan")}), "timeout_s"),
    ("an array", "[]", "expected an object"),
    ("unknown key", {**GOOD, "shell": True}, "shell"),
    *((f"no {key}", {k: v for k, v in GOOD.items() if k != key}, key) for key in GOOD),
    *((f"argv {argv!r}", {**GOOD, "argv": argv}, "argv")
      for argv in ("true", [], [""], [1], [None], ["a\0b"], {"0": "true"}, None, ["\ud800"])),
    *((f"env {env!r}", {**GOOD, "env": env}, "env")
      for env in ([], None, {"A": 1}, {"A": None}, {"": "x"}, {"A=B": "x"}, {"A": "a\0b"}, {"A\0": "x"})),
    *((f"{key} {value!r}", {**GOOD, key: value}, key)
      for key in ("timeout_s", "cleanup_timeout_s") for value in (0, -1, "60", True, None, 10**12, 10**400)),
    *((f"grace_s {value!r}", {**GOOD, "grace_s": value}, "grace_s") for value in (-1, 10, 11, "2", False)),
    *((f"drain {value!r}", {**GOOD, "drain": value}, "drain") for value in ("none", None, 1, ["seed"])),
    *((f"cwd {value!r}", {**GOOD, "cwd": value}, "cwd") for value in ("tmp", "", 1, "/a\0b")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "named"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED]
)
def test_a_command_that_does_not_fit_is_refused_by_name_and_launches_nothing(supervised, value, named):
    supervised.raw_command(value)
    supervised.launch()
    assert supervised.wait() == 125
    message = supervised.errors()
    assert message.startswith("supervisor: ") and named in message and "Traceback" not in message
    left = {path.name for path in supervised.dir.iterdir()}
    assert left == {"process_supervisor.py", "command.json"}  # No claim, no receipt: it may be tried again.


@pytest.mark.parametrize("kind", ["missing", "a link", "a FIFO", "a folder", "too large"])
def test_a_command_file_that_is_no_plain_bounded_file_is_refused(supervised, kind):
    path = supervised.dir / "command.json"
    if kind == "a link":
        (supervised.work / "real.json").write_text(json.dumps(GOOD))
        path.symlink_to(supervised.work / "real.json")
    elif kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "too large":
        path.write_text(json.dumps({**GOOD, "argv": ["true", "x" * 5_000_000]}))
    supervised.launch()
    assert supervised.wait() == 125
    assert "command.json" in supervised.errors()
    assert not (supervised.dir / "launch.claim").exists()
    assert not (supervised.dir / "cleanup.json").exists()


def test_a_relative_session_directory_is_refused(supervised):
    argv = [supervised.python, "-I", "-S", str(supervised.dir / "process_supervisor.py"), "session"]
    done = subprocess.run(argv, cwd=supervised.root, capture_output=True, timeout=20)
    assert done.returncode == 125 and b"absolute" in done.stderr


def test_of_many_launches_into_one_directory_one_takes_effect(supervised, kit):
    supervised.command(
        ["sh", "-c", 'echo ran >> "$WORK/runs"; while [ ! -e "$WORK/go" ]; do sleep 0.01; done']
    )
    launches = [supervised.launch() for _ in range(8)]

    def losers():
        return [process.returncode for process in launches if process.poll() is not None]

    kit.eventually(lambda: len(losers()) == 7, "all but one have given up")
    assert losers() == [125] * 7
    assert not (supervised.dir / "cleanup.json").exists()  # The run goes on: no loser may speak for it.
    (supervised.work / "go").touch()
    assert sorted(process.wait(20) for process in launches) == [0] + [125] * 7
    assert (supervised.work / "runs").read_text() == "ran\n"
    assert supervised.receipt_file()["cleanup_confirmed"]
    assert not [path.name for path in supervised.dir.iterdir() if path.name.startswith(".")]


def test_a_later_launch_is_refused_also_with_a_new_command(supervised):
    supervised.run("exit 0")
    assert supervised.wait() == 0
    supervised.run('touch "$WORK/again"')
    assert supervised.wait() == 125
    assert "another launch holds it" in supervised.errors()
    assert not (supervised.work / "again").exists()


@pytest.mark.parametrize("fence", ["stop.request", "retired"])
def test_a_launch_after_the_fence_is_refused_also_by_hand(supervised, fence):
    if fence == "retired":
        (supervised.root / "session.retired").mkdir()
    else:
        supervised.stop()
    supervised.run('touch "$WORK/ran"')
    assert supervised.wait() == 125
    assert ("retired" if fence == "retired" else "before the launch") in supervised.errors()
    assert not (supervised.work / "ran").exists()
    assert not (supervised.dir / "launch.claim").exists()
    assert not (supervised.dir / "cleanup.json").exists()


@pytest.mark.parametrize(
    ("argv", "cwd", "code", "words"),
    [
        (["/nowhere/program"], "/", 127, "No such file"),
        (["no-such-program-anywhere"], "/", 127, "No such file"),
        (["/etc/passwd"], "/", 126, "Permission denied"),
        (["/etc"], "/", 126, "Permission denied"),
        (["true"], "/nowhere", 126, "/nowhere"),
    ],
)
def test_a_program_that_cannot_be_run_gives_a_confirmed_receipt_that_says_so(
    supervised, argv, cwd, code, words
):
    supervised.command(argv, cwd=cwd)
    supervised.launch()
    receipt = supervised.receipt()
    assert receipt["cleanup_confirmed"] and receipt["return_code"] == code and not receipt["timed_out"]
    assert argv[0] in receipt["error"] and words in receipt["error"]


def test_the_harness_gets_the_commands_environment_and_nothing_of_the_launchers(supervised, kit):
    env = {"PATH": "/usr/bin:/bin", "ODD": "\u00e4\n=\udcff", "EMPTY": ""}
    supervised.raw_command({**GOOD, "argv": ["cat", "/proc/self/environ"], "env": env})
    supervised.launch(env={"CANARY": "server-secret", "PATH": os.environ["PATH"]})
    assert supervised.receipt()["return_code"] == 0
    seen = (supervised.dir / "output.log").read_bytes().split(b"\0")
    [mark] = [item for item in seen if item.startswith(b"INSPAN_RUN=")]
    assert len(mark) == len("INSPAN_RUN=") + 32
    given = [b"", b"PATH=/usr/bin:/bin", b"ODD=\xc3\xa4\n=\xff", b"EMPTY=", mark]
    assert sorted(seen) == sorted(given)


def test_the_supervisors_own_environment_is_blank_to_others(supervised):
    supervised.command(["sh", "-c", "cat /proc/$PPID/environ; cat /proc/$PPID/cmdline"])
    supervised.launch(env={"CANARY": "server-secret", "PATH": os.environ["PATH"]})
    assert supervised.receipt()["return_code"] == 0
    seen = (supervised.dir / "output.log").read_bytes()
    assert b"CANARY" not in seen and b"python" not in seen
    assert seen.strip(b"\0") == b"~~"


def test_the_harness_leads_a_session_and_group_of_its_own_with_an_empty_stdin(supervised, kit):
    script = "wc -c; echo outer 1>&2; ls /proc/self/fd; report harness $$; while :; do sleep 1; done"
    read_end, write_end = os.pipe()
    supervised.command(["sh", "-c", kit.report_pid + script])
    supervisor = supervised.launch(pass_fds=(read_end, write_end), stdin=subprocess.PIPE)
    pid = supervised.pid("harness")
    _, parent, group, session = kit.stat_of(pid)
    assert (parent, group, session) == (supervisor.pid, pid, pid)
    supervised.stop()
    assert supervised.receipt()["cleanup_confirmed"]
    supervisor.stdin.close()
    os.close(read_end)
    os.close(write_end)
    assert supervised.output().split() == ["0", "outer", "0", "1", "2", "3"]  # 3 is ls's own.


def test_niceness_and_limits_are_inherited(supervised):
    supervised.command(["sh", "-c", "nice; ulimit -n"])
    argv = [supervised.python, "-I", "-S", str(supervised.dir / "process_supervisor.py"), str(supervised.dir)]
    script = 'ulimit -n 123; exec nice -n 3 "$@"'
    subprocess.run(["sh", "-c", script, "sh", *argv], timeout=20, check=True)
    assert supervised.output().split() == [str(os.nice(0) + 3), "123"]


def test_without_a_directory_of_its_own_the_harness_runs_where_the_launcher_was(supervised):
    supervised.command(["pwd"], cwd=None)
    supervised.launch(cwd=supervised.work)
    assert supervised.receipt()["return_code"] == 0
    assert supervised.output() == f"{supervised.work}\n"


def test_closed_standard_streams_of_the_launcher_do_not_mix_the_files_up(supervised):
    supervised.command(["sh", "-c", "echo out; echo err >&2"])
    argv = [supervised.python, "-I", "-S", str(supervised.dir / "process_supervisor.py"), str(supervised.dir)]
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *argv], timeout=20, check=True)
    assert supervised.output() == "out\nerr\n"
    assert supervised.receipt_file()["cleanup_confirmed"]


def test_a_child_that_holds_the_launchers_pipe_open_does_not_delay_anything(supervised):
    # The service inherits output.log, never the pipe: the pipe ends with the supervisor.
    service = "(setsid sh -c ': > $WORK/up; exec sleep 1000' &)"
    supervised.run(service + "; while [ ! -e $WORK/up ]; do :; done")
    process = supervised.processes[-1]
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, b"", b"")
    assert len(supervised.living()) == 1
