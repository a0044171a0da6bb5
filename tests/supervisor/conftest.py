"""Real supervisors over real processes; every wait has a deadline, and nothing outlives its test."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from inspan_runtime.testing.processes import lives
from inspan_supervisor import SUPERVISOR_FILE, supervisor_source

WAIT_S = 20.0
MARKER = "INSPAN_TEST_MARKER"


def eventually(check, what, timeout_s=WAIT_S):
    """The first true value of `check()`; fails when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.003)


def stat_of(pid):
    """(state, parent, group, session) of a process as /proc has it, or None when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0], int(fields[1]), int(fields[2]), int(fields[3])


class Supervised:
    """One session directory and the supervisor that runs in it."""

    def __init__(self, root: Path, python: str = sys.executable) -> None:
        self.python = python
        self.marker = uuid.uuid4().hex
        self.root = root
        self.dir = root / "session"
        self.dir.mkdir(mode=0o700)
        self.work = root / "work"
        self.work.mkdir()
        (self.dir / SUPERVISOR_FILE).write_bytes(supervisor_source())
        self.processes: list[subprocess.Popen] = []

    def command(self, argv, **fields):
        """Write command.json for `argv`; the marker in its environment lets the test find all descendants."""
        env = {
            "PATH": os.environ["PATH"],
            MARKER: self.marker,
            "WORK": str(self.work),
            **fields.pop("env", {}),
        }
        value = {"argv": argv, "env": env, "timeout_s": 60, "cleanup_timeout_s": 15, "cwd": str(self.work)}
        self.raw_command({**value, **fields})

    def raw_command(self, value):
        (self.dir / "command.json").write_text(value if isinstance(value, str) else json.dumps(value))

    def launch(self, **popen):
        """Start a supervisor by its plain command line."""
        argv = [self.python, "-I", "-S", str(self.dir / SUPERVISOR_FILE), str(self.dir)]
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        process = subprocess.Popen(argv, **options)
        self.processes.append(process)
        return process

    def run(self, script, **fields):
        """Launch a shell script as the harness."""
        self.command(["sh", "-c", script], **fields)
        return self.launch()

    def pid(self, name):
        """The pid that a script has put into ``$WORK/<name>.pid`` by `report`."""
        path = self.work / f"{name}.pid"
        return int(eventually(lambda: path.exists() and path.read_text().strip(), f"{name} reports its pid"))

    def wait_file(self, name):
        eventually((self.work / name).exists, f"{name} appears")

    def stop(self):
        (self.dir / "stop.request").touch()

    def wait(self):
        """Wait for the last supervisor's end; returns its exit code."""
        process = self.processes[-1]
        process.wait(WAIT_S)
        return process.returncode

    def errors(self):
        return self.processes[-1].stderr.read().decode()

    def receipt(self):
        self.wait()
        return self.receipt_file()

    def receipt_file(self):
        return json.loads((self.dir / "cleanup.json").read_text())

    def report(self):
        return json.loads((self.dir / "processes.json").read_text())

    def reported(self, kind):
        return {entry["pid"] for entry in self.report()[kind]}

    def output(self):
        return (self.dir / "output.log").read_text()

    def living(self):
        """Every living process that carries this session's marker in its environment."""
        needle = f"{MARKER}={self.marker}".encode()
        found = set()
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    if needle in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") and lives(int(name)):
                        found.add(int(name))
                except OSError:
                    continue
        return found

    def clean(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(WAIT_S)
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()

        def none_left():
            for pid in self.living():
                os.kill(pid, signal.SIGKILL)
            return not self.living()

        eventually(none_left, "the test's processes are gone")


REPORT_PID = 'report() { echo "$2" > "$WORK/$1.tmp" && mv "$WORK/$1.tmp" "$WORK/$1.pid"; }\n'


@pytest.fixture
def supervised(tmp_path):
    one = Supervised(tmp_path)
    yield one
    one.clean()


@pytest.fixture
def make_supervised(tmp_path):
    made = []

    def make(**options):
        root = tmp_path / f"s{len(made)}"
        root.mkdir()
        made.append(Supervised(root, **options))
        return made[-1]

    yield make
    for one in made:
        one.clean()


class Lifeline:
    """A pipe whose write end the harness's tools inherit: its end is the proof that none of them is left."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def is_held(self):
        """A read finds the end of the pipe; while somebody holds it, there is nothing to read yet."""
        try:
            while os.read(self.fd, 65536):
                pass
        except BlockingIOError:
            return True
        return False


@pytest.fixture
def lifeline(supervised):
    one = Lifeline(supervised.work / "lifeline")
    yield one
    os.close(one.fd)


@pytest.fixture
def kit():
    """The helpers, for tests that need them by name."""

    class Kit:
        eventually = staticmethod(eventually)
        stat_of = staticmethod(stat_of)
        lives = staticmethod(lives)
        report_pid = REPORT_PID

        @staticmethod
        def adopted(pid, parent):
            eventually(lambda: stat_of(pid)[1] == parent, f"{pid} is adopted by {parent}")

    return Kit


@pytest.fixture
def may_limit():
    """A root that may make control groups; containers of a CI may not give that."""
    if os.geteuid() != 0 or not os.access("/sys/fs/cgroup", os.W_OK):
        pytest.skip("NO CONTROL GROUPS: only a root that may write to /sys/fs/cgroup limits sandboxes")
