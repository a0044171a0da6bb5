"""What a task does to its machine does not end the supervisor, nor keep it from stopping the harness."""

import ast
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from inspan_runtime.supervisor_client import WAIT_SCRIPT
from inspan_supervisor import LOADER, supervisor_source

IN_NAMESPACE = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
IN_NAMESPACE += ["--pid", "--fork", "--kill-child", "--mount-proc"]

WORDS = [
    "python",
    "supervisor",
    "process_supervisor",
    "session",
    "inspan",
    "command",
    "json",
    "harness",
    "-I",
]
ATTACKS = [
    *(
        f"pkill {kind} {flag} -- {word}"
        for word in WORDS
        for kind in ("", "-f")
        for flag in ("-TERM", "-KILL")
    ),
    *(f"pkill {flag} python3" for flag in ("-TERM", "-KILL", "-INT", "-HUP")),
    *(f"killall {flag} python3 python" for flag in ("", "-KILL")),
    'fuser -k "$WORK"',
    'fuser -k -TERM "$WORK"',
    "kill -TERM 0",
]


def test_no_attack_by_name_folder_or_group_finds_the_supervisor(supervised):
    """In a pid namespace of its own, where pkill cannot reach the tester."""
    # The harness sits elsewhere: fuser kills whoever sits in the folder, and then the run ends by itself.
    harness = 'trap "" TERM\n: > "$WORK/up"\nwhile :; do sleep 1000; done'
    supervised.command(
        ["sh", "-c", harness], env={"PROMPT": "python supervisor session"}, grace_s=0.1, cwd="/"
    )
    attacks = "\n".join(f"(setsid sh -c '{attack}' > /dev/null 2>&1)" for attack in ATTACKS)
    steps = f"""
cd "$WORK"
trap : TERM INT HUP
"$1" -I -S "$2/process_supervisor.py" "$2" & supervisor=$!
while [ ! -e "$WORK/up" ]; do sleep 0.01; done
cat "$2/supervisor.pid"; echo "$supervisor"; cat "/proc/$supervisor/comm"
{attacks}
[ -e "$2/cleanup.json" ] || echo "no receipt yet"
touch "$2/stop.request"
wait "$supervisor"
cat "$2/cleanup.json"
"""
    argv = [*IN_NAMESPACE, "sh", "-c", steps, "sh", supervised.python, str(supervised.dir)]
    env = {**os.environ, "WORK": str(supervised.work)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=50)
    lines = done.stdout.splitlines()
    assert lines[0] == lines[1], done
    assert lines[2:4] == ["~~", "no receipt yet"], done
    receipt = json.loads(lines[4])
    assert receipt["cleanup_confirmed"] and not receipt["timed_out"]


def test_the_attacks_do_find_a_process_that_does_not_hide(supervised):
    """The check above can fail: each attack by name or folder ends a plain Python in the same place."""
    steps = """
cd "$WORK"
trap : TERM INT HUP
for attack in 'pkill -f python' 'pkill python3' 'killall python3' 'pkill -f supervisor' 'fuser -k "$WORK"'; do
    "$1" -I -S -c 'import time; open("up", "w"); time.sleep(60)' supervisor & plain=$!
    while [ ! -e up ]; do sleep 0.01; done
    rm up
    (cd / && exec setsid sh -c "$attack" > /dev/null 2>&1)
    wait "$plain"; echo "$?"
done
"""
    name = Path(supervised.python).resolve().name
    argv = [
        *IN_NAMESPACE,
        "sh",
        "-c",
        steps.replace("python3", name),
        "sh",
        os.path.realpath(supervised.python),
    ]
    env = {**os.environ, "WORK": str(supervised.work)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=50)
    assert done.stdout.split() == ["143", "143", "143", "143", "137"], done


def test_strangers_signals_neither_end_the_supervisor_nor_stop_the_harness(supervised, kit):
    supervisor = supervised.run(kit.report_pid + "report harness $$; while :; do sleep 1000; done")
    pid = supervised.pid("harness")
    deaf_to = set(range(1, signal.SIGRTMAX + 1)) - {signal.SIGKILL, signal.SIGSTOP, 32, 33}
    for number in sorted(deaf_to):
        os.kill(supervisor.pid, number)
    assert kit.lives(pid) and supervisor.poll() is None
    supervised.stop()
    receipt = supervised.receipt()
    assert receipt["cleanup_confirmed"] and receipt["return_code"] == -15


def test_the_harness_starts_with_every_signal_at_its_default_and_none_blocked(supervised):
    supervised.command(["grep", "Sig[BI]", "/proc/self/status"])
    argv = [supervised.python, "-I", "-S", str(supervised.dir / "process_supervisor.py"), str(supervised.dir)]
    subprocess.run(["sh", "-c", "trap '' HUP TERM; exec \"$@\"", "sh", *argv], timeout=20, check=True)
    masks = dict(line.split(":") for line in supervised.output().splitlines())
    libc_own = 0b11 << 31  # 32 and 33 cannot be set through the C library.
    assert int(masks["SigBlk"], 16) == 0
    assert int(masks["SigIgn"], 16) & ~libc_own == 0


def test_a_stopped_supervisor_goes_on_when_it_is_continued(supervised, kit):
    supervisor = supervised.run(kit.report_pid + "report harness $$; exit 0")
    supervised.pid("harness")
    os.kill(supervisor.pid, signal.SIGSTOP)
    os.kill(supervisor.pid, signal.SIGCONT)
    assert supervised.receipt()["return_code"] == 0


def test_a_killed_supervisor_leaves_no_receipt(supervised, kit):
    supervisor = supervised.run(kit.report_pid + "report harness $$; while :; do sleep 1000; done")
    pid = supervised.pid("harness")
    supervisor.kill()
    assert supervised.wait() == -9
    assert not (supervised.dir / "cleanup.json").exists()
    assert kit.lives(pid)  # Unknown is unknown: it may well run.


def test_the_harness_is_the_preferred_victim_when_memory_runs_out(supervised, kit):
    supervisor = supervised.run(kit.report_pid + "report harness $$; while :; do sleep 1000; done")
    harness = int(Path(f"/proc/{supervised.pid('harness')}/oom_score_adj").read_text())
    own = int(Path(f"/proc/{supervisor.pid}/oom_score_adj").read_text())
    assert harness == 500 and own < harness


def test_the_supervisor_does_not_sit_in_the_tasks_folder(supervised, kit):
    supervised.command(["sh", "-c", kit.report_pid + "report harness $$; while :; do sleep 1000; done"])
    supervisor = supervised.launch(cwd=supervised.work)
    supervised.pid("harness")
    assert os.readlink(f"/proc/{supervisor.pid}/cwd") == "/"
    assert Path(f"/proc/{supervisor.pid}/cmdline").read_bytes().strip(b"\0") == b"~~"
    assert Path(f"/proc/{supervisor.pid}/comm").read_text() == "~~\n"
    assert Path(f"/proc/{supervisor.pid}/environ").read_bytes().strip(b"\0") == b""


@pytest.mark.parametrize(
    "python_options", [[], ["import fcntl; fcntl.F_NOTIFY = 4242"]], ids=["told", "blind"]
)
def test_a_stop_is_noticed_with_and_without_the_kernels_notification(supervised, kit, python_options):
    """4242 is no fcntl command: the kernel refuses it as one without directory notification would."""
    supervised.command(["sh", "-c", kit.report_pid + "report harness $$; while :; do sleep 1000; done"])
    file = str(supervised.dir / "process_supervisor.py")
    argv = [
        supervised.python,
        "-I",
        "-S",
        "-c",
        "; ".join([*python_options, LOADER]),
        file,
        str(supervised.dir),
    ]
    supervised.processes.append(subprocess.Popen(argv))
    supervised.pid("harness")
    supervised.stop()
    assert supervised.receipt()["return_code"] == -15


def test_a_terminal_that_hangs_up_changes_nothing(supervised, kit):
    """The supervisor leads the terminal's session, so that the SIGHUP goes to it."""
    supervised.command(["sh", "-c", kit.report_pid + "report harness $$; while :; do sleep 1000; done"])
    argv = [supervised.python, "-I", "-S", str(supervised.dir / "process_supervisor.py"), str(supervised.dir)]
    pid, terminal = os.forkpty()
    if pid == 0:
        os.execv(argv[0], argv)
    try:
        harness = supervised.pid("harness")
        assert os.tcgetpgrp(terminal) == pid
        os.close(terminal)  # The last one who holds it: the line is cut.
        kit.eventually(lambda: tty_of(pid) == 0, "the session has lost its terminal")
        assert kit.lives(pid) and kit.lives(harness)
        supervised.stop()
        kit.eventually((supervised.dir / "cleanup.json").exists, "there is a receipt")
        assert supervised.receipt_file()["cleanup_confirmed"]
    finally:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + 15


def tty_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[4])


@pytest.mark.parametrize("refused", [False, True])
def test_an_output_pipe_that_nobody_reads_costs_neither_the_run_nor_the_refusal(supervised, refused):
    if refused:
        supervised.raw_command("{")
    else:
        supervised.command(["sh", "-c", "echo out; exit 4"])
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = supervised.launch(stdout=write_end, stderr=write_end)
    os.close(write_end)
    assert process.wait(20) == (125 if refused else 4)
    if not refused:
        assert supervised.receipt_file()["cleanup_confirmed"]
        assert supervised.output() == "out\n"


def test_no_clock_that_jumps_is_looked_at():
    """Deadline, grace and budget are monotonic, and the controller's script asks /proc/uptime."""
    uses = {
        node.attr
        for node in ast.walk(ast.parse(supervisor_source()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time"
    }
    assert uses == {"monotonic", "process_time"}
    words = set(re.findall(r"[\w/]+", WAIT_SCRIPT))
    assert "/proc/uptime" in words and not words & {"date", "EPOCHSECONDS", "SECONDS", "stat", "touch"}


def test_two_stops_at_once_and_signals_between_make_one_orderly_stop(supervised, kit):
    """Nor does any of our signals go to the supervisor's own group, in which the launcher may sit."""
    bystander = 'sleep 1000 & echo $! > "$1.new"; mv "$1.new" "$1"; shift; exec "$@"'
    supervised.command(
        ["sh", "-c", kit.report_pid + "trap 'exit 9' TERM; report harness $$; while :; do sleep 1; done"]
    )
    argv = [supervised.python, "-I", "-S", str(supervised.dir / "process_supervisor.py"), str(supervised.dir)]
    beside = supervised.work / "beside.pid"
    shell = ["sh", "-c", bystander, "sh", str(beside), *argv]
    process = subprocess.Popen(shell, start_new_session=True, stderr=subprocess.DEVNULL)
    supervised.processes.append(process)
    supervised.pid("harness")
    neighbour = supervised.pid("beside")
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(process.pid, number)
    supervised.stop()
    os.kill(process.pid, signal.SIGTERM)
    supervised.stop()
    receipt = supervised.receipt()
    assert (receipt["cleanup_confirmed"], receipt["return_code"], receipt["error"]) == (True, 9, None)
    assert os.getpgid(neighbour) == process.pid and kit.lives(neighbour)
    os.kill(neighbour, signal.SIGKILL)
