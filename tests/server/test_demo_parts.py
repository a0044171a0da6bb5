"""The demonstration's parts as values: timeline, report, run folder, result, command line."""

import json

import attrs
import pytest

from inspan_core.codec import decode
from inspan_core.errors import UsageError
from inspan_core.harness import Artifacts, HarnessSpec
from inspan_core.receipts import CleanupReceipt, ProcessEntry, ProcessesReport
from inspan_core.wire import EpisodeId, RunRequest
from inspan_runtime.service import SessionEvidence
from inspan_server.cli import report
from inspan_server.cli.demo import episode_id_of
from inspan_server.cli.demo_result import put_together
from inspan_server.cli.demo_servers import run_request
from inspan_server.cli.main import main
from inspan_server.cli.parser import build_parser
from inspan_server.cli.run_folder import RunFolder
from inspan_server.cli.timeline import Entry, Timeline
from inspan_server.environment.demo_task import DEMO_TASK, demo_script
from inspan_server.environment.episode import StepBegan, StepEnded
from inspan_server.model.capture import Capture
from inspan_server.model.script import parse_script

EPISODE = EpisodeId(rollout_id="r1")
ECHO = HarnessSpec(
    name="echo", version="1", model_api="chat_completions", level=2,
    request_fields={"input": "applied", "metadata": "applied"},
)  # fmt: skip


class FakeClock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_the_timeline_joins_what_three_servers_tell():
    clock, seen = FakeClock(), []
    timeline = Timeline(clock, seen.append)

    def began(step):
        timeline.on_step(StepBegan(step=step, episode_id=EPISODE, at=clock.now))

    def ended(step, failure=None):
        timeline.on_step(
            StepEnded(step=step, episode_id=EPISODE, at=clock.now, duration_s=1.0, failure=failure)
        )

    began("seed_resources")
    clock.now += 0.25
    timeline.on_resources("res-1", "create_sandbox")
    clock.now += 1
    ended("seed_resources")
    clock.now += 1
    began("seed_agent")
    for run in ("CONNECTING", "CONNECTING", "INSTALLING", "REST", "REST"):
        timeline.on_transition({"run": run})
        clock.now += 0.5
    ended("seed_agent", "agent seed answered 503")
    assert timeline.entries == seen
    assert [attrs.astuple(entry) for entry in seen] == [
        ("seed_resources", "seed resources", 0.0, 250.0, None),
        ("seed_resources", "create the sandbox", 250.0, 1000.0, None),
        ("seed_agent", "seed agent", 2250.0, 0.0, None),
        ("seed_agent", "connect to the sandbox", 2250.0, 1000.0, None),
        ("seed_agent", "install the harness", 3250.0, 500.0, None),
        ("seed_agent", "seed agent", 4750.0, 0.0, "agent seed answered 503"),
    ]
    assert timeline.elapsed_ms == 4750.0
    assert timeline.under_way is None
    timeline.begin("wait")
    clock.now += 7
    assert timeline.under_way == ("wait", 7.0)
    assert report.waiting_line(timeline.elapsed_ms, "wait", 7.0) == "   11,750 ms  wait ... (7 s so far)"


@pytest.mark.parametrize("token", ["a4173780", "00000000", "deadbeef"])
def test_any_token_makes_a_valid_episode(token):
    request = run_request(episode_id_of(token), DEMO_TASK)
    assert decode(RunRequest, request).episode_id.rollout_id.startswith(token)


@pytest.mark.parametrize("harness", ["pi", "echo", "another"])
def test_the_demonstration_s_scripts_are_scripts(harness):
    replies = parse_script(demo_script(harness)).replies("any")
    assert len(replies) == 4
    assert all(reply.usage is not None for reply in replies)
    assert replies[-1].content and not replies[-1].tool_calls


def evidence(**changes):
    fields = {
        "receipt": CleanupReceipt(cleanup_confirmed=True, return_code=0, error=None, timed_out=False),
        "processes": ProcessesReport(preserved=(ProcessEntry(pid=7),)),
        "artifacts": Artifacts(),
        "gradable": True,
    }
    return SessionEvidence(**{**fields, **changes})


ANSWER = {
    "result": {
        "reward": 1.0,
        "verification": {"exit_code": 0, "timed_out": False, "output": ""},
        "response": {"id": "resp_1", "status": "completed"},
        "agent_observations": {
            "source": "echo",
            "records": [
                {"kind": "tool_call", "tool_name": "bash", "status": "completed", "duration_ms": 12.5}
            ],
            "gaps": [{"code": "some_gap", "detail": "why", "invocation_id": None}],
        },
    },
    "failure": None,
}
FAILURE = {
    "failure_reason": "the provider is away",
    "terminal": False,
    "stage": "seed",
    "partial_response": None,
}


def result_of(answer=ANSWER, found=None):
    return put_together(
        harness=ECHO,
        task=DEMO_TASK,
        provider="local",
        sandbox=None,
        answer=answer,
        evidence=evidence() if found is None else found,
        capture=Capture(),
        rollout_key="r1",
        timeline=Timeline(FakeClock()),
    )


def test_a_healthy_result_has_all_that_was_promised():
    result = result_of()
    assert result.is_healthy
    assert result.reward == 1.0
    assert not result.failed_at_seed
    assert {
        "reward", "outcome", "receipt", "response", "agent_observations", "model_calls", "timeline",
        "sandbox", "versions",
    } <= set(result.value)  # fmt: skip
    assert result.value["outcome"] == "completed"
    assert result.value["receipt"]["cleanup_confirmed"] is True
    assert result.value["processes"] == {"killed": [], "preserved": [{"pid": 7}], "unfinished": []}
    json.dumps(result.value)


NEGATIVE = CleanupReceipt(cleanup_confirmed=False, return_code=None, error="it lives", timed_out=False)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (ANSWER, evidence(gradable=False)),
        (ANSWER, evidence(receipt=None)),
        (ANSWER, evidence(receipt=NEGATIVE)),
        ({**ANSWER, "result": {**ANSWER["result"], "cleanup_failures": ["the sandbox lives"]}}, evidence()),
        ({"result": None, "failure": FAILURE}, evidence()),
    ],
)
def test_a_reward_without_all_of_the_evidence_is_not_healthy(answer, found):
    assert not result_of(answer, found).is_healthy


def test_a_failed_seed_is_told_apart():
    result = result_of({"result": None, "failure": FAILURE})
    assert result.failed_at_seed
    assert (result.reward, result.value["outcome"]) == (None, "failed")
    late = result_of(
        {"result": None, "failure": {**FAILURE, "stage": "agent", "partial_response": {"id": "r"}}}
    )
    assert not late.failed_at_seed
    assert late.value["response"] == {"id": "r"}


def test_the_summary_says_every_fact():
    text = report.summary({**result_of().value, "run_dir": "/runs/1"})
    assert text.splitlines() == [
        "receipt       confirmed: the harness stopped; return code 0",
        "processes     0 killed, 1 preserved, 0 unfinished",
        "tool calls    bash completed (12 ms)",
        "model calls   0 seen by the gateway; tokens: unknown",
        "gap           some_gap: why",
        "verification  exit code 0",
        "verdict       reward 1; the episode was healthy; completed, 0.00 s",
        "records       /runs/1",
    ]
    failed = {**result_of({"result": None, "failure": FAILURE}, evidence(receipt=None, processes=None)).value}
    text = report.summary({**failed, "run_dir": "/runs/1"})
    assert "receipt       none\nprocesses     unknown\ntool calls    none observed\n" in text
    assert "failure       at seed: the provider is away\n" in text
    assert "no reward: not graded; the episode was not healthy; failed" in text


def test_a_phase_line_says_when_it_ended_and_why_it_failed():
    entry = Entry(step="verify", phase="run the tests", started_ms=1000.0, duration_ms=234.0, failure="a\nb")
    assert report.phase_line(entry) == "    1,234 ms  run the tests                   234.0 ms  FAILED: a b"


def test_a_run_folder_is_new_or_empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.make(None)
    assert folder.path.parent == tmp_path / "runs"
    assert RunFolder.make(None).path != folder.path
    assert RunFolder.make("mine").path == tmp_path / "mine"
    folder.write("a", b"1")
    with pytest.raises(UsageError, match="holds files already"):
        RunFolder.make(str(folder.path))
    with pytest.raises(UsageError, match="cannot be made"):
        RunFolder.make(str(folder.path / "a" / "b"))


def test_artifacts_stay_inside_their_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    names = ["ok.txt", "sub/ok.txt", "../out", "/etc/out", "a/../../out", "", "nul\0"]
    written = folder.write_artifacts(Artifacts(files=dict.fromkeys(names, b"x")))
    assert written == ["ok.txt", "sub/ok.txt"]
    found = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(found) == ["run/artifacts/ok.txt", "run/artifacts/sub/ok.txt"]


def test_the_harness_list_names_the_installed(capsys):
    assert main(["harness", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"echo", "pi"} <= {each["name"] for each in listed["harnesses"]}
    assert listed["broken"] == []
    assert main(["harness", "list"]) == 0
    assert "echo         1          chat_completions" in capsys.readouterr().out


def test_the_machine_is_shown(capsys):
    assert main(["machine", "show", "--format", "mermaid"]) == 0
    assert "SEEDING" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv", [[], ["dance"], ["demo", "--fast"], ["serve"], ["harness"], ["machine", "burn"]]
)
def test_wrong_usage_exits_with_2(argv, capsys):
    with pytest.raises(SystemExit) as exited:
        build_parser().parse_args(argv)
    assert exited.value.code == 2
    assert "usage: inspan" in capsys.readouterr().err


def test_the_version(capsys):
    with pytest.raises(SystemExit) as exited:
        main(["--version"])
    assert exited.value.code == 0
    assert capsys.readouterr().out.startswith("inspan 0.")
