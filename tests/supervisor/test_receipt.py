"""The receipt is whole, durable and true, or it is not there."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from inspan_supervisor import LOADER, SUPERVISOR_FILE, supervisor_source

FIELDS = {"cleanup_confirmed", "return_code", "error", "timed_out"}

# With these a command gets a mount namespace of its own, also for a tester who is not root.
UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]


def run_with_small_disk(supervised, script):
    """Supervise `script` with the session directory on a file system of 64 KiB; returns what ls says."""
    supervised.command(["sh", "-c", script], env={"DIR": str(supervised.dir)})
    outside = supervised.root / "outside.py"
    (supervised.dir / "process_supervisor.py").rename(outside)
    command = (supervised.dir / "command.json").rename(supervised.root / "command.json")
    steps = """
mount -t tmpfs -o size=64k,mode=700 tmpfs "$1" || exit 99
cp "$2" "$1/command.json" || exit 98
"$3" -I -S "$4" "$1"; echo "code $?"
rm -f "$1/fill"
cat "$1/cleanup.json"; ls -A "$1" >&2
"""
    argv = ["sh", "-c", steps, "sh", supervised.dir, command, sys.executable, outside]
    return subprocess.run([*UNSHARE, *map(str, argv)], capture_output=True, text=True, timeout=40)


def test_a_full_disk_does_not_cost_the_receipt_because_its_place_was_reserved(supervised):
    done = run_with_small_disk(supervised, 'cat /dev/zero > "$DIR/fill"; exit 6')
    first, _, receipt = done.stdout.partition("\n")
    assert first == "code 6", done.stderr
    assert json.loads(receipt) == {
        "cleanup_confirmed": True, "return_code": 6, "error": None, "timed_out": False}  # fmt: skip


def test_a_full_disk_without_the_reserve_leaves_no_receipt_and_no_half_of_one(supervised):
    done = run_with_small_disk(supervised, 'rm "$DIR"/.cleanup.json.*; cat /dev/zero > "$DIR/fill"; exit 0')
    assert done.stdout == "code 125\n", done.stderr
    assert "cleanup.json" not in done.stderr.replace("cat: ", "").split()


def test_a_disk_that_is_full_before_the_launch_means_no_launch_and_no_claim(supervised):
    supervised.command(["sh", "-c", "exit 0"])
    steps = """
mount -t tmpfs -o size=64k,mode=700 tmpfs "$1" && cp "$2" "$1/command.json" || exit 99
cat /dev/zero > "$1/fill"
"$3" -I -S "$4" "$1"; echo "code $?"; ls -A "$1"
"""
    outside = supervised.root / "outside.py"
    (supervised.dir / "process_supervisor.py").rename(outside)
    command = (supervised.dir / "command.json").rename(supervised.root / "command.json")
    argv = ["sh", "-c", steps, "sh", supervised.dir, command, sys.executable, outside]
    done = subprocess.run([*UNSHARE, *map(str, argv)], capture_output=True, text=True, timeout=40)
    assert done.stdout.split() == ["code", "125", "command.json", "fill"], done.stderr


def test_the_receipt_survives_that_a_tool_deletes_the_session_directory(supervised):
    supervised.run(f'rm -rf "{supervised.dir}"; exit 4')
    assert supervised.wait() == 4
    assert supervised.receipt_file() == {
        "cleanup_confirmed": True, "return_code": 4, "error": None, "timed_out": False}  # fmt: skip


def test_a_deleted_session_directory_gets_its_claim_back_and_a_stop_is_still_noticed(supervised, kit):
    """Without the claim whoever stops the run would conclude that nothing was ever launched."""
    supervisor = supervised.run(f'rm -rf "{supervised.dir}"; touch "$WORK/deleted"; sleep 1000')
    supervised.wait_file("deleted")
    kit.eventually((supervised.dir / "supervisor.pid").exists, "the directory is made again")
    assert (supervised.dir / "launch.claim").read_text() == f"{supervisor.pid}\n"
    supervised.stop()
    assert supervised.receipt()["return_code"] == -15


IN_THE_WAY = {
    "a FIFO": 'mkfifo "$p"',
    "a folder": 'mkdir -p "$p/x"',
    "a link": 'echo task > "$WORK/file"; ln -s "$WORK/file" "$p"',
    "a link to nowhere": 'ln -s /nowhere/x "$p"',
    "a link to a folder": 'ln -s / "$p"',
}


@pytest.mark.parametrize("put", IN_THE_WAY.values(), ids=IN_THE_WAY)
@pytest.mark.parametrize("name", [".cleanup.json.*", "cleanup.json", "processes.json"])
def test_what_a_tool_has_put_in_the_place_of_a_file_goes_aside(supervised, name, put):
    """It costs no receipt, nothing is written where a link leads, and no FIFO hangs us."""
    supervised.run(f'cd "{supervised.dir}"; p=$(echo {name}); rm -f "$p"; {put}; exit 6')
    assert supervised.receipt() == {
        "cleanup_confirmed": True, "return_code": 6, "error": None, "timed_out": False}  # fmt: skip
    assert supervised.report()["killed"] == []
    assert [path.read_text() for path in supervised.work.glob("file")] in ([], ["task\n"])


SHUT = {
    "a file": 'rm -rf "$D"; : > "$WORK/f"; mv -T "$WORK/f" "$D"',
    "a FIFO": 'rm -rf "$D"; mkfifo "$WORK/f"; mv -T "$WORK/f" "$D"',
    "a link to nowhere": 'rm -rf "$D"; ln -s /nowhere/x "$WORK/f"; mv -T "$WORK/f" "$D"',
}


@pytest.mark.parametrize("shut", SHUT.values(), ids=SHUT)
def test_what_a_tool_has_put_in_the_place_of_the_directory_is_removed(supervised, kit, shut):
    """The tool beats us to it: whoever is stopped meanwhile makes nothing again."""
    script = f"kill -STOP $PPID; D={supervised.dir}; {shut}; kill -CONT $PPID; exit 6"
    supervised.run(script)
    assert supervised.receipt()["return_code"] == 6


@pytest.mark.parametrize("ending", ["exit", "stop"])
def test_a_directory_that_a_tool_has_shut_is_opened_again(kit, ending):
    """For root no folder is shut: whoever tests as root becomes nobody for this."""
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o777)
        session, up = Path(root) / "session", Path(root) / "up"
        script = f"chmod 000 {session}; : > {up}; [ {ending} = exit ] || exec sleep 1000"
        command = {"argv": ["sh", "-c", script], "env": {"PATH": os.environ["PATH"]}, "timeout_s": 20,
                   "cleanup_timeout_s": 8}  # fmt: skip
        steps = 'mkdir -m 700 "$1" && printf %s "$2" > "$1/command.json" && exec "$3" -I -S -c "$4" "$5" "$1"'
        source = Path(root) / SUPERVISOR_FILE
        source.write_bytes(supervisor_source())
        python = shutil.which("python3", path=os.defpath) if nobody else sys.executable
        values = [str(session), json.dumps(command), python, LOADER, str(source)]
        process = subprocess.Popen(["sh", "-c", steps, "sh", *values], **nobody)
        if ending == "stop":
            kit.eventually(up.exists, "the harness has shut the folder")
            kit.eventually(lambda: session.stat().st_mode & 0o777 == 0o700, "it is opened again")
            (session / "stop.request").touch()
        assert process.wait(20) == (0 if ending == "exit" else 143)
        assert json.loads((session / "cleanup.json").read_text())["cleanup_confirmed"]


def test_a_retired_directory_is_never_made_again(supervised):
    retired = supervised.root / "session.retired"
    supervised.run(f'mv "{supervised.dir}" "{retired}"; rm -rf "{retired}"/*; exit 0')
    assert supervised.wait() == 125
    assert not supervised.dir.exists()
    assert list(retired.glob("cleanup.json")) == []


def test_a_report_that_cannot_be_written_does_not_cost_the_receipt(supervised):
    done = run_with_small_disk(supervised, 'cat /dev/zero > "$DIR/fill"; exit 6')
    assert done.stdout.startswith("code 6\n"), done.stderr
    assert "processes.json" not in done.stderr.split()


def test_a_receipt_that_cannot_be_put_in_place_is_none(supervised):
    """A mount in its place can be neither replaced nor moved."""
    script = 'mkdir "$DIR/cleanup.json" && mount -t tmpfs t "$DIR/cleanup.json"; exit 0'
    supervised.command(["sh", "-c", script], env={"DIR": str(supervised.dir)})
    argv = [sys.executable, "-I", "-S", str(supervised.dir / SUPERVISOR_FILE), str(supervised.dir)]
    done = subprocess.run([*UNSHARE, *argv], capture_output=True, timeout=40)
    assert done.returncode == 125
    assert (supervised.dir / "cleanup.json").is_dir()
    assert [path.name for path in supervised.dir.iterdir() if path.name.startswith(".cleanup")] == []


def test_the_receipt_appears_at_once_and_replaces_a_forged_one(supervised, kit):
    forged = json.dumps({"cleanup_confirmed": True, "return_code": 0, "error": None, "timed_out": False})
    supervised.run(f"echo '{forged}' > '{supervised.dir}/cleanup.json'; echo $$ > $WORK/x; sleep 1000")
    supervised.wait_file("x")
    supervised.stop()
    receipt = supervised.receipt()
    assert set(receipt) == FIELDS and receipt["return_code"] == -15


def test_the_receipt_is_on_disk_before_its_name_is_there_and_that_too_before_anybody_is_told(
    tmp_path, monkeypatch
):
    names = {"__name__": "supervisor"}
    exec(compile(supervisor_source(), "process_supervisor.py", "exec"), names)
    run = names["Run"](str(tmp_path), {"drain": "seed"})
    done, calls = [], {name: getattr(os, name) for name in ("fsync", "rename", "close")}

    def fsync(fd):
        done.append(("synced", os.readlink(f"/proc/self/fd/{fd}")))
        calls["fsync"](fd)

    def rename(draft, name):
        calls["rename"](draft, name)
        done.append(("named", name))

    def close(fd):
        done.extend([("told", "")] if fd == run.lock else [])
        calls["close"](fd)

    for each in (fsync, rename, close):
        monkeypatch.setattr(os, each.__name__, each)
    assert run.conclude(True) == 125  # There was no harness.
    monkeypatch.undo()
    steps = []
    for name in ("processes.json", "cleanup.json"):
        steps += [("synced", f"{tmp_path}/.{name}.{os.getpid()}"), ("named", f"{tmp_path}/{name}")]
    assert done == [*steps, ("synced", str(tmp_path)), ("told", "")]
    for fd in (run.output, run.notice):
        os.close(fd)


def test_nothing_but_the_contracts_files_is_left_and_only_their_owner_reads_them(supervised):
    supervised.run("echo hello")
    supervised.wait()
    left = {path.name: path.stat().st_mode & 0o777 for path in supervised.dir.iterdir()}
    left.pop("process_supervisor.py")
    names = ["launch.claim", "supervisor.pid", "output.log", "processes.json", "cleanup.json"]
    assert left == dict.fromkeys(names, 0o600)
    assert (supervised.dir / "supervisor.pid").read_text() == f"{supervised.processes[-1].pid}\n"
    dropped = {"killed": 0, "preserved": 0, "unfinished": 0}
    assert supervised.report() == {"killed": [], "preserved": [], "unfinished": [], "dropped": dropped}


def test_a_report_entry_says_who_the_process_was_and_nothing_of_its_arguments(supervised, kit):
    script = (
        "cp /bin/sleep '" + str(supervised.root) + "/odd) \u00e4\"name'\n"
        "setsid '"
        + str(supervised.root)
        + "/odd) \u00e4\"name' 1000.5 & echo $! > $WORK/c; mv $WORK/c $WORK/child.pid\n"
        "wait"
    )
    supervisor = supervised.run(script)
    pid = supervised.pid("child")
    start = kit.eventually(lambda: kit.stat_of(pid)[2] == pid and start_ticks(pid), "it has its own session")
    supervised.stop()
    supervised.wait()
    [entry] = supervised.report()["killed"]
    assert entry.pop("name") in ('odd) \u00e4"name', "setsid")
    assert entry == {
        "pid": pid, "start_ticks": start, "parent": supervisor.pid, "group": pid, "session": pid,
        "ports": [], "reason": "adopted"}  # fmt: skip
    assert "1000.5" not in (supervised.dir / "processes.json").read_text()


def start_ticks(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def test_the_report_is_bounded(supervised, kit):
    supervised.run(
        "for i in $(seq 300); do setsid sleep 1000 & done; touch $WORK/all; wait", cleanup_timeout_s=30
    )
    supervised.wait_file("all")
    supervised.stop()
    assert supervised.receipt()["cleanup_confirmed"]
    assert len(supervised.report()["killed"]) == 256
    assert supervised.report()["dropped"]["killed"] >= 300 - 256
    assert (supervised.dir / "processes.json").stat().st_size < 128 * 1024
    assert supervised.living() == set()


def test_of_a_flood_of_output_the_tail_is_kept_and_the_disk_is_not_filled(supervised):
    supervised.run("head -c 150000000 /dev/zero; echo the end")
    assert supervised.receipt()["return_code"] == 0
    data = (supervised.dir / "output.log").read_bytes()
    assert len(data) <= 64 * 1024 * 1024
    # A writer that is faster than the notice stands before it.
    assert re.search(rb"\[\d+ bytes dropped\]\n", data) and b"\0the end\n" in data


SERVICE = "(setsid sh -c ': > $WORK/service; exec sleep 1000' &); while [ ! -e $WORK/service ]; do :; done\n"


@pytest.mark.parametrize(
    ("children", "ending", "confirmed"),
    [("", "exit", True), (SERVICE, "exit", True), ("", "stop", True), (SERVICE, "stop", False)],
)
@pytest.mark.parametrize("blindness", ["no /proc", "another namespace's /proc"])
def test_an_unreadable_process_table_is_no_proof(supervised, blindness, children, ending, confirmed):
    """Without children the kernel itself says that nobody is left; with a service only a look could tell."""
    last = "exit 0" if ending == "exit" else ': > "$WORK/up"; sleep 1000'
    supervised.command(["sh", "-c", children + last], cleanup_timeout_s=2, grace_s=0.1)
    hide_proc = "mount -t tmpfs tmpfs /proc" if blindness == "no /proc" else "true"
    inside = ["sh", "-c", hide_proc + ' && "$@"', "sh", supervised.python, "-I", "-S"]
    argv = [*UNSHARE, "--pid", "--fork", "--kill-child", *inside]
    file = supervised.dir / "process_supervisor.py"
    supervised.processes.append(subprocess.Popen([*argv, str(file), str(supervised.dir)]))
    if ending == "stop":
        supervised.wait_file("up")
        supervised.stop()
    receipt = supervised.receipt()
    assert receipt["cleanup_confirmed"] is confirmed, receipt
    if not confirmed:
        assert "process state is unreadable" in receipt["error"]
