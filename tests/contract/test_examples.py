"""The examples run where only core, its runtime and the supervisor are installed: no web framework."""

import json
import os
import subprocess
import sys

import pytest

from inspan_core.events import ClientGone
from inspan_core.testing.player import finished, running
from inspan_runtime.journal_sqlite import SqliteJournal

pytestmark = [pytest.mark.registry, pytest.mark.timeout(600)]
EXAMPLES = ("embed_without_server.py", "embed_without_anyio.py", "replay_journal.py")
CLIENT_SETTINGS = (
    "PIP_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_", "REQUESTS_",
)  # fmt: skip
"""What package clients read, and nothing else, is passed on."""


def run(*command, cwd, timeout_s=300, expect=0):
    """Run in an environment that knows nothing of this checkout."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(CLIENT_SETTINGS)}
    base = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "LANG": "C.UTF-8"}
    ended = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**base, **kept},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert ended.returncode == expect, f"{command}\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    return ended.stdout if expect == 0 else ended.stderr


def pip(python, *arguments, cwd):
    return run(python, "-m", "pip", "--disable-pip-version-check", *arguments, cwd=cwd, timeout_s=500)


@pytest.fixture(scope="module")
def python(tmp_path_factory, root):
    """The interpreter of an environment that has inspan-core[runtime] and nothing more."""
    folder = tmp_path_factory.mktemp("embedding")
    for project in ("core", "supervisor"):
        command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder]
        run(*command, root / project, cwd=folder)
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    python = folder / "venv/bin/python"
    (core,) = folder.glob("inspan_core-*.whl")
    (supervisor,) = folder.glob("inspan_supervisor-*.whl")
    constraints = ["--constraint", root / "constraints.txt"]
    pip(python, "install", "--quiet", *constraints, f"{core}[runtime]", supervisor, cwd=folder)
    return python


def test_the_web_stack_is_not_there(python, tmp_path):
    listing = json.loads(pip(python, "list", "--format", "json", cwd=tmp_path))
    names = {each["name"].lower().replace("_", "-") for each in listing}
    assert {"inspan-core", "inspan-supervisor", "anyio"} <= names
    assert not names & {"inspan-server", "starlette", "hypercorn", "httpx", "h11"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short(root, name):
    assert len((root / "examples" / name).read_text().splitlines()) < 60


def test_a_harness_runs_under_supervision_without_a_server(python, root, tmp_path):
    said = run(python, root / "examples/embed_without_server.py", tmp_path, cwd=tmp_path)
    answer, receipt = said.splitlines()
    assert answer == "the answer is 42"
    assert "cleanup_confirmed=True" in receipt
    assert (tmp_path / "task/notes.txt").read_text() == f"working in {tmp_path / 'task'}\n"
    assert not list((tmp_path / "run").rglob("session")), "the sandbox is stopped, its scratch folder gone"


def test_the_machine_is_driven_without_an_event_loop(python, root, tmp_path):
    said = run(python, root / "examples/embed_without_anyio.py", cwd=tmp_path)
    orders = [line.partition("(")[0] for line in said.splitlines()]
    assert orders == [
        "CreateSandbox", "Install", "Reply", "TakeSlot", "Stage", "Launch", "Collect", "Parse",
        "ReleaseExec", "Reply", "StopSandbox", "Reply", "StartTimer", "gradable: True",
    ]  # fmt: skip


def test_a_journal_is_told_session_by_session(python, root, tmp_path):
    journal = SqliteJournal(tmp_path / "journal")
    for name, player in (("cut", running()), ("done", finished())):
        for event in player.events:
            journal.append(name, event)
    journal.append("cut", ClientGone(at=0.0, waiter=2))
    locked = run(python, root / "examples/replay_journal.py", journal.folder, cwd=tmp_path, expect=1)
    assert "is in use by another server" in locked
    journal.close()
    said = run(python, root / "examples/replay_journal.py", journal.folder, cwd=tmp_path)
    cut, done = said.rstrip().split("\n\n")
    assert cut.startswith("session cut\n")
    assert "SeedRequested         SEEDING      ConnectSandbox 1" in cut
    assert cut.splitlines()[-1].startswith("  owes: AwaitReceipt"), "a launch is never owed again"
    assert "client 2 is answered 200" in done
    assert done.splitlines()[-1] == "  owes: nothing"


def test_a_folder_without_a_journal_is_said_so(python, root, tmp_path):
    said = run(python, root / "examples/replay_journal.py", tmp_path, cwd=tmp_path, expect=1)
    assert "holds no journal: expected sessions.sqlite" in said
    assert list(tmp_path.iterdir()) == []
