"""Whole activations of the echo harness under the real supervisor, against a real HTTP model."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from inspan_core.codec import encode_observations
from inspan_core.findings import Outcome
from inspan_core.observations import ModelCallRef
from inspan_core.plugins import load_plugins
from inspan_runtime.testing.recorded import codes


def command(text):
    return json.dumps({"command": text})


def test_it_is_a_plugin_without_problems():
    plugins = load_plugins()
    assert [str(problem) for problem in plugins.problems if problem.distribution == "inspan-echo"] == []
    assert plugins.harness("echo").spec.name == "echo"


def test_it_runs_what_the_model_asks_for_and_reports_all_of_it(echo, model):
    model.replies = [
        echo.answer("I look.", ("c1", command("pwd; echo hi > made")), reasoning_content="Hm."),
        echo.answer("Done.", response_id="chatcmpl-2", usage=(20, 7)),
    ]
    with echo.started({"input": "Make a file", "metadata": {"a": "b"}, "temperature": 0.5}) as running:
        parsed = running.end()
        assert Path(running.context.workdir, "made").read_text() == "hi\n"
        assert not os.path.exists(os.path.join(running.context.session_dir, "input.json"))

    assert parsed.outcome is Outcome.COMPLETED
    response = parsed.response
    assert [item["type"] for item in response["output"]] == [
        "reasoning", "message", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    assert response["output"][2]["arguments"] == command("pwd; echo hi > made")
    assert response["output"][3] == {
        "type": "function_call_output",
        "call_id": "c1",
        "output": running.context.workdir + "\n",
    }
    assert response["output"][4]["content"][0]["text"] == "Done."
    usage = response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (30, 12, 42)
    assert (response["id"], response["status"], response["metadata"]) == (
        "resp_chatcmpl-1",
        "completed",
        {"a": "b"},
    )

    invocation, call = parsed.observations.records
    assert invocation.model_calls == (
        ModelCallRef(model_ref="policy", response_id="chatcmpl-1"),
        ModelCallRef(model_ref="policy", response_id="chatcmpl-2"),
    )
    assert (call.tool_call_id, call.status, call.sandbox_id) == ("c1", "completed", "box")
    assert call.started_at <= call.completed_at
    assert codes(parsed) == ["usage_details_unavailable"]
    encode_observations(parsed.observations)

    (path, first), (_, second) = model.requests
    assert path == "/ng-rollout/r/v1/chat/completions"
    assert (first["model"], first["temperature"]) == ("policy", 0.5)
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool"]
    assert model.headers[0]["Authorization"] == f"Bearer {echo.key}"
    assert model.headers[1]["Cookie"] == "turn=1"


def test_without_a_model_it_echoes_the_input(echo, model):
    parsed = echo.run({"input": [{"role": "user", "content": "marco"}]}, model=False)
    assert parsed.outcome is Outcome.COMPLETED
    assert [item["content"][0]["text"] for item in parsed.response["output"]] == ["marco"]
    assert (model.requests, parsed.response["usage"], codes(parsed)) == ([], None, [])


def test_the_key_is_in_no_file_no_command_line_and_no_environment(echo, model):
    look = "cat ../session/*json* /proc/$PPID/cmdline /proc/$PPID/environ"
    model.replies = [echo.answer(None, ("c1", command(look))), echo.answer("ok")]
    with echo.started({"input": "a word of the task"}) as running:
        parsed = running.end()
        assert echo.key not in " ".join(running.context.argv)
    output = parsed.response["output"][1]["output"]
    assert "model_asked" in output
    assert echo.key not in output


def test_pkill_by_a_word_of_ours_finds_neither_runner_nor_supervisor(echo, model):
    look = """read -r _ _ _ parent _ < /proc/$PPID/stat
        for p in $PPID $parent; do cat /proc/$p/comm; tr '\\0' ' ' < /proc/$p/cmdline; done"""
    model.replies = [echo.answer(None, ("c1", command(look))), echo.answer("ok")]
    output = echo.run({"input": "hi"}).response["output"][1]["output"]
    assert "~" in output
    assert not re.search(r"[A-Za-z0-9]", output), output


@pytest.mark.parametrize(
    "message",
    [None, "text", [], {"tool_calls": 5}, {"tool_calls": [{"id": "c1"}]}, {"tool_calls": ["c1"]}],
    ids=str,
)
def test_an_answer_of_another_shape_is_the_models_failure(echo, model, message):
    model.replies = [{"id": "chatcmpl-1", "choices": [{"message": message, "finish_reason": "stop"}]}]
    parsed = echo.run({"input": "hi"})
    assert (parsed.outcome, codes(parsed)) == (Outcome.FAILED, [])
    assert parsed.observations.records[0].error_type == "model_unreachable"


@pytest.mark.parametrize(
    "arguments", ['{"command": "a', "[]", "null", "{}", '{"command": 7}', "x" * 100_000, "[" * 100_000]
)
def test_malformed_arguments_are_kept_and_answered_with_an_error(echo, model, arguments):
    model.replies = [echo.answer(None, ("c1", arguments)), echo.answer("I see.")]
    parsed = echo.run({"input": "hi"})
    assert parsed.outcome is Outcome.COMPLETED
    call, output = parsed.response["output"][:2]
    assert call["arguments"] == arguments
    assert "arguments" in output["output"]
    assert parsed.observations.records[1].status == "failed"


def test_a_command_that_fails_or_hangs_is_told_to_the_model(echo, model):
    model.replies = [
        echo.answer(None, ("c1", command("echo out; exit 3")), ("c2", command("sleep 60"))),
        echo.answer("ok"),
    ]
    parsed = echo.run({"input": "hi"}, command_timeout_s=0.2)
    outputs = [item["output"] for item in parsed.response["output"] if item["type"] == "function_call_output"]
    assert outputs == ["out\n\n[exit code 3]", "\n[exit code -9]"]
    assert [record.status for record in parsed.observations.records[1:]] == ["completed", "timeout"]


def test_a_service_that_a_command_leaves_behind_delays_nothing(echo, model):
    model.replies = [echo.answer(None, ("c1", command("sleep 40 & echo $!"))), echo.answer("ok")]
    with echo.started({"input": "hi"}) as running:
        parsed = running.end()
        service = int(parsed.response["output"][1]["output"])
        report = json.loads(Path(running.context.session_dir, "processes.json").read_bytes())
        os.kill(service, 9)
    assert service in [process["pid"] for process in report["unfinished"]]


def test_long_output_keeps_its_tail(echo, model):
    model.replies = [echo.answer(None, ("c1", command("seq 100000"))), echo.answer("ok")]
    output = echo.run({"input": "hi"}).response["output"][1]["output"]
    assert output.startswith("[only the last 32768 of 588895 bytes]\n")
    assert output.endswith("\n100000\n")


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(401, "UNPROCESSABLE"), (400, "UNPROCESSABLE"), (429, "FAILED"), (500, "FAILED")],
)
def test_the_models_refusal_is_passed_on_with_status_and_body(echo, model, status, outcome):
    model.replies = [(status, {"error": {"code": "of the model"}})]
    parsed = echo.run({"input": "hi"})
    assert (parsed.outcome, parsed.response, len(model.requests)) == (Outcome[outcome], None, 1)
    assert parsed.detail["status"] == status
    assert "of the model" in parsed.detail["body"]
    assert parsed.observations.records[0].error_type == f"model_http_{status}"


def test_a_model_that_cannot_be_reached_is_a_failure(echo, model):
    model.base_url = "http://127.0.0.1:1/v1"
    parsed = echo.run({"input": "hi"})
    assert parsed.outcome is Outcome.FAILED
    assert "could not be reached" in parsed.detail


@pytest.mark.parametrize(
    ("finish_reason", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_a_limit_of_the_model_makes_the_run_incomplete(echo, model, finish_reason, reason):
    model.replies = [echo.answer("half a", finish_reason=finish_reason)]
    parsed = echo.run({"input": "hi"})
    assert parsed.outcome is Outcome.INCOMPLETE
    assert (parsed.response["status"], parsed.response["incomplete_details"]) == (
        "incomplete",
        {"reason": reason},
    )


def test_the_turn_limit_keeps_partial_work(echo, model):
    model.replies = [echo.answer(None, ("c1", command("true")))] * 3
    parsed = echo.run({"input": "hi"}, max_turns=2)
    assert (parsed.outcome, len(model.requests)) == (Outcome.INCOMPLETE, 2)
    assert parsed.response["incomplete_details"] is None
    assert parsed.response["metadata"] == {"stop_reason": "turn_limit"}


def test_a_run_past_its_deadline_keeps_what_it_did(echo, model):
    model.replies = [echo.answer("first", ("c1", command("echo done"))), "silence"]
    parsed = echo.run({"input": "hi"}, timeout_s=1.5)
    assert parsed.outcome is Outcome.INCOMPLETE
    assert parsed.response["metadata"] == {"stop_reason": "timeout"}
    assert parsed.response["output"][2]["output"] == "done\n"
    assert "artifact_missing" in codes(parsed)


def test_a_run_past_its_deadline_without_an_answer_is_a_failure(echo, model):
    model.replies = ["silence"]
    parsed = echo.run({"input": "hi"}, timeout_s=1.0)
    assert (parsed.outcome, parsed.response) == (Outcome.FAILED, None)


def test_a_stopped_run_keeps_its_trace_and_leaves_a_call_open(echo, model):
    model.replies = [echo.answer("first", ("c1", command("touch began; sleep 60")))]
    with echo.started({"input": "hi"}) as running:
        assert model.asked.wait(20)
        wait_for(os.path.join(running.context.workdir, "began"))
        running.stop()
        parsed = running.end(interrupted=True)
    assert parsed.outcome is Outcome.FAILED
    assert parsed.observations.records[1].status == "incomplete"
    assert parsed.response["output"][0]["content"][0]["text"] == "first"


def wait_for(path):
    deadline = time.monotonic() + 20
    while not os.path.exists(path):
        assert time.monotonic() < deadline, f"{path} never came"
        os.sched_yield()
