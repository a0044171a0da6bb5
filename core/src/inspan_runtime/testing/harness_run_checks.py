"""Checks of a plugin's runs: real processes under the real supervisor, against a scripted model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import anyio
import anyio.lowlevel

from inspan_core.findings import Outcome
from inspan_core.observations import AgentInvocation
from inspan_runtime.contexts import ARTIFACT_TOTAL_LIMIT_BYTES
from inspan_runtime.testing.harness_case import ANSWER, PRINTED, Check, HarnessCase
from inspan_runtime.testing.harness_episode import Run
from inspan_runtime.testing.sandbox_check_support import CheckFailed, expect
from inspan_runtime.testing.scripted_model import ROLLOUT_PATH, Reply

SILENT = Reply(is_silent=True)
SPOILT: Mapping[Literal["huge", "link", "fifo"], str] = {
    "huge": "sparse files of a terabyte",
    "link": "links out of the session's folder",
    "fifo": "pipes that nobody writes to",
}
COLLECT_TIMEOUT_S = 60.0
MALFORMED = '{"path": "a'
NO_TOOL = "no_such_tool"
FOLDERS = 'echo "$HOME:$XDG_CONFIG_HOME:$XDG_CACHE_HOME:$XDG_DATA_HOME:$XDG_STATE_HOME"'
FOLDERS_LIMIT_BYTES = 64 * 1024


async def a_run_completes(case: HarnessCase) -> None:
    """A model that answers gives a completed run with that answer, and the end is proven."""
    run = await case.whole_run()
    _proven(run)
    parsed = run.parsed
    expect(parsed.outcome is Outcome.COMPLETED, f"outcome {parsed.outcome.name}: {parsed.detail}")
    expect(ANSWER in json.dumps(parsed.response), "the model's answer is not in the response")
    expect(parsed.observations.source == case.harness.spec.name, "observations.source is not the harness")


async def answers_come_from_model_calls(case: HarnessCase) -> None:
    """Each run that answers has called the model, and its trace names the calls that the model witnessed."""
    run = await case.whole_run()
    expect(bool(run.model.calls), "the run has an answer, but the model was never called")
    witnessed = [call.response_id for call in run.model.calls]
    invocations = [each for each in run.parsed.observations.records if isinstance(each, AgentInvocation)]
    expect(bool(invocations), "the observations have no agent_invocation")
    told = [ref.response_id for each in invocations for ref in each.model_calls]
    gaps = [gap.code for gap in run.parsed.observations.gaps]
    invented = [each for each in told if each is not None and each not in witnessed]
    expect(not invented, f"the trace names model calls {invented}, the model witnessed {witnessed}")
    complete = len(told) == len(witnessed) or bool(gaps)
    expect(complete, f"the trace has {len(told)} of {len(witnessed)} model calls, and no gap says so")


async def every_call_is_of_the_rollout(case: HarnessCase) -> None:
    """Every request carries the rollout's prefix and the episode's key: titles and summaries too."""
    run = await case.whole_run()
    strays = [call.path for call in run.model.strays]
    expect(not strays, f"requests outside of {ROLLOUT_PATH}: {strays}")
    wanted = {"chat_completions": "/chat/completions", "responses": "/responses"}[case.harness.spec.model_api]
    for call in run.model.calls:
        expect(call.path.startswith(ROLLOUT_PATH + wanted), f"{call.path} is not the declared model_api's")
        named = call.body.get("model")
        expect(named == run.parse_input.model_name, f"a call asks for the model {named!r}")


async def offered_tools_are_declared(case: HarnessCase) -> None:
    """Every tool that the model is offered is one of builtin_tools: no grant can take its name."""
    run = await case.whole_run()
    for call in run.model.calls:
        named = {name for tool in call.body.get("tools") or () if (name := _name_of(tool)) is not None}
        unknown = sorted(named - case.harness.spec.builtin_tools)
        expect(not unknown, f"the model is offered {unknown}, which builtin_tools does not have")


async def the_key_is_the_episodes(case: HarnessCase) -> None:
    """Every call of the model is authorised by the key of this episode, and artifacts do not hold it."""
    async with case.episode(Reply(text=ANSWER)) as episode:
        run = await episode.run()
        for call in run.model.calls:
            sent = call.headers.get("authorization", "").removeprefix("Bearer ")
            expect(sent == episode.key, "a call of the model does not carry the episode's key")
        holders = [name for name, data in run.artifacts.files.items() if episode.key.encode() in data]
        expect(not holders, f"the artifacts {holders} hold the model's key")


async def the_caller_is_supervised(case: HarnessCase) -> None:
    """Whoever calls the model is in the process group that the supervisor started and stops."""
    run = await case.whole_run()
    expect(run.supervisor_pid is not None, "there is no supervisor.pid: was the run supervised?")
    for call in run.model.calls:
        expect(bool(call.callers), "who called the model cannot be told: its connection had closed")
        for caller in call.callers:
            if caller.leader_parent != run.supervisor_pid:
                raise CheckFailed(
                    f"process {caller.pid} called the model from the group {caller.group}, whose leader is "
                    f"not the supervisor's child: the harness has left the group that stop and deadline end"
                )


async def prompt_and_key_stay_out_of_sight(case: HarnessCase) -> None:
    """No command line, environment or file that others may read holds the prompt or the key."""
    async with case.episode(SILENT) as episode:
        secrets = {"prompt": episode.prompt.rpartition(" ")[2].rstrip("."), "key": episode.key}

        async def look() -> None:
            for what, secret in secrets.items():
                shown = await episode.sight.shown(secret, episode.session_dir)
                expect(not shown.lines, f"the {what} is in a command line: {shown.lines[:1]}")
                expect(not shown.files, f"{shown.files} hold the {what} and others may read it")

        run = await episode.run(stop_after=look)
        argv = "" if run.command is None else json.dumps([*run.command.argv, *run.command.env.values()])
        told = [what for what, secret in secrets.items() if secret in argv]
        expect(not told, f"staging put the {' and the '.join(told)} into argv or env")


async def a_deadline_ends_it(case: HarnessCase) -> None:
    """A deadline while the model is silent ends every process; nothing calls the model afterwards."""
    async with case.episode(SILENT) as episode:
        run = await episode.run(timeout_s=case.deadline_s)
        _proven(run)
        expect(run.receipt is not None and run.receipt.timed_out, "the receipt does not say timed_out")
        _nothing_left(run)
        _not_completed(run, "the deadline fired")


async def a_stop_ends_it(case: HarnessCase) -> None:
    """A close while the model is silent ends every process and keeps what was recorded."""
    async with case.episode(SILENT) as episode:
        run = await episode.run(stop_after=anyio.lowlevel.checkpoint)
        _proven(run)
        _nothing_left(run)
        _not_completed(run, "the run was closed")
        expect(bool(run.artifacts.files), "nothing was collected of a run that was closed")


async def a_refusing_model_is_no_success(case: HarnessCase) -> None:
    """A 401 is no completed run, whatever the program's exit code; its detail tells the status."""
    async with case.episode(Reply(status=401, text="who are you")) as episode:
        run = await episode.run()
        _proven(run)
        _not_completed(run, "the model answered 401")
        expect(run.parsed.outcome is not Outcome.INCOMPLETE, "a run without any answer is called incomplete")
        expect("401" in json.dumps(run.parsed.detail), f"the detail names no 401: {run.parsed.detail}")


async def unknown_usage_is_null(case: HarnessCase) -> None:
    """Usage equals what the model told; what it does not tell is null with a gap, never 0."""
    whole = await case.whole_run()
    gaps = [gap.code for gap in whole.parsed.observations.gaps]
    calls = len(whole.model.calls)
    usage = (whole.parsed.response or {}).get("usage")
    if usage is None:
        expect(bool(gaps), "usage is null although the model told it, and no gap says why")
    else:
        counted = (usage["input_tokens"], usage["output_tokens"])
        expect(counted == (10 * calls, 5 * calls), f"usage is {counted} after {calls} calls of (10, 5)")
    async with case.episode(Reply(text=ANSWER, usage=None)) as episode:
        run = await episode.run()
    usage = (run.parsed.response or {}).get("usage")
    expect(usage is None, f"the model told no usage, and the response says {usage}")
    expect(bool(run.parsed.observations.gaps), "the model told no usage, and there is no gap")


async def the_task_is_left_alone(case: HarnessCase) -> None:
    """A run without tools leaves nothing in the task's folder and its HOME, also no caches and settings."""
    async with case.episode(Reply(text=ANSWER)) as episode:
        places = (episode.home, episode.workdir)
        before = await episode.sight.tree(places)
        await episode.run()
        made = sorted(await episode.sight.tree(places) - before)
        expect(not made, f"the harness left in HOME or the task's folder: {made[:5]}")


async def collecting_is_repeatable_and_bounded(case: HarnessCase) -> None:
    """Collecting twice gives the same; huge, linked and never-ending files end it neither late nor large."""
    async with case.episode(Reply(text=ANSWER)) as episode:
        run = await episode.run()
        again = await episode.collect()
        expect(again.files == run.artifacts.files, "a second collection gave other files")
        outside = f"{episode.workdir}/outside"
        await episode.sandbox.upload(outside, b"not of the session")
        paths = [f"{episode.session_dir}/{name}" for name in run.artifacts.files]
        for how, what in SPOILT.items():
            await episode.sight.spoil(how, paths, outside)
            try:
                with anyio.fail_after(COLLECT_TIMEOUT_S):
                    found = await episode.collect()
            except Exception as error:  # a plugin's hook: whatever it raises is the finding
                said = f"{type(error).__name__}: {error}"
                raise CheckFailed(f"collecting {what} raised {said}") from error
            size = sum(len(data) for data in found.files.values())
            expect(size <= ARTIFACT_TOTAL_LIMIT_BYTES, f"{size} bytes were collected")
            followed = [name for name, data in found.files.items() if b"not of the session" in data]
            expect(not followed, f"collecting {followed} followed a link out of the session's folder")


async def tool_output_reaches_the_model(case: HarnessCase) -> None:
    """What a command of the harness's shell printed is told to the model and in the response."""
    if case.shell_call is None:
        return
    run = await case.whole_run()
    expect(len(run.model.calls) == 2, f"{len(run.model.calls)} calls of the model, expected 2")
    expect(PRINTED in _outputs(run.model.calls[1].body), "the tool's output was not sent to the model")
    items = (run.parsed.response or {}).get("output", [])
    called = [each["call_id"] for each in items if each["type"] == "function_call"]
    answered = [each["call_id"] for each in items if each["type"] == "function_call_output"]
    expect(bool(called) and called == answered, f"calls {called} and outputs {answered} do not match")


async def malformed_arguments_are_kept(case: HarnessCase) -> None:
    """Arguments that are no JSON are never run as if they were; the trace keeps them, or has a gap."""
    if case.shell_call is None:
        return
    tool, _ = case.shell_call("true")
    replies = (Reply(calls=[("call_1", tool, MALFORMED)]), Reply(text=ANSWER))
    async with case.episode(*replies) as episode:
        run = await episode.run()
        _proven(run)
        items = (run.parsed.response or {}).get("output", [])
        kept = [each["arguments"] for each in items if each["type"] == "function_call"]
        told = bool(run.parsed.observations.gaps) or run.parsed.outcome is not Outcome.COMPLETED
        expect(kept == [MALFORMED] or told, f"arguments {MALFORMED!r} became {kept}, and no gap says so")


async def unknown_tools_are_not_run(case: HarnessCase) -> None:
    """A call of a tool that the harness does not have runs nothing; the trace keeps it, or has a gap."""
    if case.shell_call is None:
        return
    _, arguments = case.shell_call("touch ran")
    replies = (Reply(calls=[("call_1", NO_TOOL, arguments)]), Reply(text=ANSWER))
    async with case.episode(*replies) as episode:
        run = await episode.run()
        _proven(run)
        made = await episode.sight.tree([episode.workdir])
        expect(f"{episode.workdir}/ran" not in made, f"a call of {NO_TOOL!r} was run by another tool")
        items = (run.parsed.response or {}).get("output", [])
        kept = [each["name"] for each in items if each["type"] == "function_call"]
        told = bool(run.parsed.observations.gaps) or run.parsed.outcome is not Outcome.COMPLETED
        expect(kept == [NO_TOOL] or told, f"a call of {NO_TOOL!r} became {kept}, and no gap says so")


async def a_deadline_ends_its_tools(case: HarnessCase) -> None:
    """A deadline while a command runs ends the command too."""
    if case.shell_call is None:
        return
    async with case.episode(Reply(calls=[("call_1", *case.shell_call("sleep 4711"))])) as episode:
        run = await episode.run(timeout_s=case.deadline_s)
        _proven(run)
        _nothing_left(run)
        _not_completed(run, "the deadline fired")


async def tools_keep_the_tasks_home(case: HarnessCase) -> None:
    """A file that a tool writes below ~ is there for the verification, and so are the XDG folders."""
    if case.shell_call is None:
        return
    write = case.shell_call(f"{FOLDERS} > ~/of-the-tool")
    async with case.episode(Reply(calls=[("call_1", *write)]), Reply(text=ANSWER)) as episode:
        await episode.run()
        path = f"{episode.home}/of-the-tool"
        expect(path in await episode.sight.tree([episode.home]), "a tool's ~ is not the task's HOME")
        told = (await episode.sandbox.download(path, limit_bytes=FOLDERS_LIMIT_BYTES)).data
        theirs = (await episode.sandbox.exec(["sh", "-c", FOLDERS], timeout_s=30.0)).stdout
        expect(told == theirs, f"a tool's HOME and XDG folders are {told!r}, the task's are {theirs!r}")


def _proven(run: Run) -> None:
    confirmed = run.receipt is not None and run.receipt.cleanup_confirmed
    expect(confirmed, f"the run's end was not proven: {run.receipt}")


def _nothing_left(run: Run) -> None:
    expect(not run.left, f"processes {sorted(run.left)} of the harness live after its proven end")


def _not_completed(run: Run, why: str) -> None:
    expect(run.parsed.outcome is not Outcome.COMPLETED, f"{why}, and the parser says completed")


def _name_of(tool: Any) -> str | None:
    """What a tool is called in either API; the model server's own tools have no name."""
    name = tool.get("function", tool).get("name")
    return name if isinstance(name, str) else None


def _outputs(body: Any) -> str:
    """What a request tells the model of its tools, in either API."""
    messages = [each for each in body.get("messages", []) if each.get("role") == "tool"]
    items = [each for each in body.get("input", []) if "output" in str(each.get("type"))]
    return json.dumps([*messages, *items])


SHELL_CHECKS: list[Check] = [
    tool_output_reaches_the_model,
    malformed_arguments_are_kept,
    unknown_tools_are_not_run,
    a_deadline_ends_its_tools,
    tools_keep_the_tasks_home,
]
"""What says nothing of a harness without a shell (`HarnessCase.shell_call`)."""

RUN_CHECKS: list[Check] = [
    a_run_completes,
    answers_come_from_model_calls,
    every_call_is_of_the_rollout,
    offered_tools_are_declared,
    the_key_is_the_episodes,
    the_caller_is_supervised,
    prompt_and_key_stay_out_of_sight,
    a_deadline_ends_it,
    a_stop_ends_it,
    a_refusing_model_is_no_success,
    unknown_usage_is_null,
    the_task_is_left_alone,
    collecting_is_repeatable_and_bounded,
    *SHELL_CHECKS,
]
