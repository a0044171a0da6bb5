"""Every check of harness plugins fails against a plugin that breaks its rule, and says what is wrong."""

from __future__ import annotations

import json
import uuid
from importlib import resources

import attrs
import pytest

import inspan_echo
from inspan_core.findings import Outcome
from inspan_core.harness import SandboxCommand
from inspan_core.hookspecs import hookimpl
from inspan_core.relay import HARNESS_HOOKS
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.testing.harness_case import ANSWER
from inspan_runtime.testing.harness_checks import HARNESS_CHECKS, CheckFailed, HarnessCase, json_call

pytestmark = pytest.mark.anyio

RUNNER = resources.files("inspan_echo").joinpath("sandbox_runner.py").read_text()


@pytest.fixture
def anyio_backend():
    return "asyncio"


def broken(**hooks):
    """Echo with some hooks replaced; each gets what it replaces as its first argument."""
    attributes = {}
    for name in ("inspan_harness", *HARNESS_HOOKS):
        attributes[name] = staticmethod(hookimpl(hooks.get(name, getattr(inspan_echo, name))))
    return type("Broken", (), attributes)()


def declaring(**changes):
    return broken(inspan_harness=lambda: attrs.evolve(inspan_echo.inspan_harness(), **changes))


def parsing(change):
    """A parser whose result is changed."""

    def inspan_parse(run):
        return change(run, inspan_echo.inspan_parse(run))

    return broken(inspan_parse=inspan_parse)


def running(old, new):
    """A runner with one passage replaced."""
    assert RUNNER.count(old) >= 1, old

    async def inspan_stage(context):
        command = await inspan_echo.inspan_stage(context)
        await context.upload_text("sandbox_runner.py", RUNNER.replace(old, new))
        return command

    return broken(inspan_stage=inspan_stage)


def completed(run, parsed):
    return attrs.evolve(parsed, outcome=Outcome.COMPLETED)


def completed_when(claim):
    return parsing(lambda run, parsed: completed(run, parsed) if claim(run) else parsed)


def reads_strictly(run, parsed):
    json.loads(run.artifacts.files.get("output.json") or b'{"ended": 1}')["ended"]
    return parsed


def adds_times(run, parsed):
    for line in run.artifacts.files.get("events.jsonl", b"").splitlines():
        if b'"at": 9' in line:
            float(json.loads(line)["at"])
    return parsed


def needs_order(run, parsed):
    events = run.artifacts.files.get("events.jsonl", b"").splitlines()
    if len(events) > 1 and b"model_answered" in events[0]:
        raise LookupError("an answer without a question")
    return parsed


def drops_gaps(run, parsed):
    return attrs.evolve(parsed, observations=attrs.evolve(parsed.observations, gaps=()))


def responding(**changes):
    """A response with some fields changed, where there is one."""

    def change(run, parsed):
        given = parsed.response
        fields = {name: value(given) for name, value in changes.items()} if given else {}
        return attrs.evolve(parsed, response=given and {**given, **fields})

    return parsing(change)


def without_arguments(response):
    return [{**item, "arguments": "{}"} if "arguments" in item else item for item in response["output"]]


async def stage_in_argv(context):
    command = await inspan_echo.inspan_stage(context)
    return SandboxCommand(argv=[*command.argv, json.dumps(context.request)], python=command.python)


async def stage_for_all_to_read(context):
    await context.upload_text("copy.json", json.dumps({"key": context.model_key}), mode=0o644)
    command = await inspan_echo.inspan_stage(context)
    await context.upload_text("sandbox_runner.py", RUNNER.replace("HERE, 0o700", "HERE, 0o755"))
    return command


async def collect_through_links(context):
    await inspan_echo.inspan_collect(context)
    for name in ("output.json", "events.jsonl"):
        command = ["head", "-c", "4096", f"{context.session_dir}/{name}"]
        context.files[name] = (await context.sandbox.exec(command, timeout_s=3)).stdout


async def collect_and_remove(context):
    await inspan_echo.inspan_collect(context)
    await context.sandbox.exec(["rm", f"{context.session_dir}/events.jsonl"], timeout_s=5)


async def collect_nothing(context):
    pass


FAKE = {
    "id": "x",
    "choices": [{"message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}],
}
ASK = "answer = ask_model(opener, model, body)"
DETACH = """
    if os.fork() == 0:
        os.setsid()
        sys.exit(main())
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
TITLE = """record("model_asked")
        try:
            opener.open(model["base_url"].replace("/ng-rollout/check", "") + "/chat/completions", data=b"{}")
        except Exception:
            pass
"""
ZERO = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}

BROKEN = {
    "declaration_is_sound": [declaring(summary=""), declaring(tool_sources=frozenset({"builtin", "mcp"}))],
    "request_fields_exist": [
        declaring(request_fields={**inspan_echo.inspan_harness().request_fields, "temprature": "applied"})
    ],
    "nothing_is_never_completed": [completed_when(lambda run: run.return_code == 0)],
    "garbage_is_never_completed": [parsing(reads_strictly), completed_when(lambda run: run.artifacts.files)],
    "hostile_values_are_survived": [parsing(adds_times), parsing(needs_order)],
    "cut_artifacts_are_never_completed": [
        completed_when(lambda run: b'"ended"' in run.artifacts.files.get("output.json", b""))
    ],
    "artifact_problems_become_gaps": [parsing(drops_gaps)],
    "a_cut_off_run_is_never_completed": [completed_when(lambda run: run.interrupted), parsing(completed)],
    "parsing_is_pure": [responding(id=lambda response: uuid.uuid4().hex)],
    "a_run_completes": [
        parsing(lambda run, parsed: attrs.evolve(parsed, outcome=Outcome.FAILED)),
        responding(output=lambda response: []),
    ],
    "answers_come_from_model_calls": [
        running(ASK, f"answer = {FAKE!r}"),
        running('answer.get("id")', '"made up"'),
    ],
    "every_call_is_of_the_rollout": [
        running('record("model_asked")', TITLE),
        running('model=model["name"]', 'model="another"'),
    ],
    "offered_tools_are_declared": [declaring(builtin_tools=frozenset({"shell"}))],
    "the_key_is_the_episodes": [
        running('"Bearer " + model["key"]', '"Bearer of-the-server"'),
        running('record("model_asked")', 'record("model_asked", key=model["key"])'),
    ],
    "the_caller_is_supervised": [running("    sys.exit(main())", DETACH)],
    "prompt_and_key_stay_out_of_sight": [
        broken(inspan_stage=stage_in_argv),
        broken(inspan_stage=stage_for_all_to_read),
    ],
    "a_deadline_ends_it": [completed_when(lambda run: run.timed_out)],
    "a_stop_ends_it": [completed_when(lambda run: run.interrupted), broken(inspan_collect=collect_nothing)],
    "a_refusing_model_is_no_success": [
        parsing(completed),
        running('ended="model_error", status=error.code', 'ended="answered", status=0'),
    ],
    "unknown_usage_is_null": [
        responding(usage=lambda response: response["usage"] or ZERO),
        responding(usage=lambda response: ZERO),
        parsing(drops_gaps),
    ],
    "the_task_is_left_alone": [
        running('record("model_asked")', 'open(os.path.expanduser("~/.settings"), "w").close()'),
        running('record("model_asked")', 'os.makedirs(".cache", exist_ok=True)'),
    ],
    "collecting_is_repeatable_and_bounded": [
        broken(inspan_collect=collect_through_links),
        broken(inspan_collect=collect_and_remove),
    ],
    "tool_output_reaches_the_model": [
        running('"content": output', '"content": ""'),
        responding(output=lambda response: response["output"][:1] + response["output"][2:]),
    ],
    "malformed_arguments_are_kept": [
        parsing(lambda run, parsed: drops_gaps(run, _without_arguments(parsed))),
    ],
    "unknown_tools_are_not_run": [
        running('.get("name") != SHELL', '.get("no") == SHELL'),
        parsing(lambda run, parsed: drops_gaps(run, without_first_items(parsed))),
    ],
    "a_deadline_ends_its_tools": [completed_when(lambda run: run.timed_out)],
    "tools_keep_the_tasks_home": [
        running("start_new_session=True", "start_new_session=True, env=dict(os.environ, HOME=HERE)"),
        running("start_new_session=True", "start_new_session=True, env=dict(os.environ, XDG_DATA_HOME=HERE)"),
    ],
}


def _without_arguments(parsed):
    return attrs.evolve(parsed, response={**parsed.response, "output": without_arguments(parsed.response)})


def without_first_items(parsed):
    return attrs.evolve(parsed, response={**parsed.response, "output": parsed.response["output"][2:]})


SAYS = {
    "declaration_is_sound": ["no summary", "needs level 3"],
    "request_fields_exist": ["temprature"],
    "nothing_is_never_completed": ["no artifacts, return code 0"],
    "garbage_is_never_completed": ["the parser raised", "hold nothing, and the parser says completed"],
    "hostile_values_are_survived": ["too large to convert", "has its lines backwards"],
    "cut_artifacts_are_never_completed": ["are cut after 25%"],
    "artifact_problems_become_gaps": ["no gap says so"],
    "a_cut_off_run_is_never_completed": ["interrupted is True", "interrupted is True"],
    "parsing_is_pure": ["two results"],
    "a_run_completes": ["outcome FAILED", "answer is not in the response"],
    "answers_come_from_model_calls": ["was never called", "made up"],
    "every_call_is_of_the_rollout": ["requests outside", "another"],
    "offered_tools_are_declared": ["offered ['bash']"],
    "the_key_is_the_episodes": ["does not carry", "hold the model's key"],
    "the_caller_is_supervised": ["has left the group"],
    "prompt_and_key_stay_out_of_sight": ["the prompt", "others may read it"],
    "a_deadline_ends_it": ["the deadline fired"],
    "a_stop_ends_it": ["the run was closed", "nothing was collected"],
    "a_refusing_model_is_no_success": ["says completed", "no 401"],
    "unknown_usage_is_null": ["told no usage, and the response", "usage is (0, 0)", "there is no gap"],
    "the_task_is_left_alone": [".settings", ".cache"],
    "collecting_is_repeatable_and_bounded": ["followed a link", "other files"],
    "tool_output_reaches_the_model": ["not sent to the model", "do not match"],
    "malformed_arguments_are_kept": ["became"],
    "unknown_tools_are_not_run": ["by another tool", "became []"],
    "a_deadline_ends_its_tools": ["the deadline fired"],
    "tools_keep_the_tasks_home": ["not the task's HOME", "XDG folders are"],
}
"""What each complaint holds: a plugin that fails for another reason proves nothing."""

ALSO_ISOLATED = {
    "the_caller_is_supervised",
    "prompt_and_key_stay_out_of_sight",
    "the_task_is_left_alone",
    "collecting_is_repeatable_and_bounded",
    "tools_keep_the_tasks_home",
}
"""Checks that look into the sandbox see no less where it has processes and files of its own."""

ISOLATED = [pytest.mark.sandbox, pytest.mark.full]


def cells():
    for check in HARNESS_CHECKS:
        broken_ones = zip(BROKEN[check.__name__], SAYS[check.__name__], strict=True)
        for number, (plugin, says) in enumerate(broken_ones):
            cell, name = (check, plugin, says), f"{check.__name__}-{number}"
            yield pytest.param(*cell, "local", id=name, marks=pytest.mark.full if number else ())
            if check.__name__ in ALSO_ISOLATED:
                yield pytest.param(*cell, "bubblewrap", id=f"bubblewrap-{name}", marks=ISOLATED)


@pytest.mark.parametrize(("check", "plugin", "says", "sandbox"), [*cells()])
async def test_the_check_sees_a_broken_plugin(tmp_path, check, plugin, says, sandbox):
    case = HarnessCase(
        plugin=plugin,
        folder=tmp_path,
        sandbox=sandbox,
        shell_call=json_call("bash", "command"),
        cache=RuntimeCache(tmp_path / "cache", client_env={}),
        deadline_s=1.0,
    )
    with pytest.raises(CheckFailed) as caught:
        await check(case)
    assert says in str(caught.value)


def test_every_check_has_a_plugin_that_breaks_it():
    assert set(BROKEN) == {check.__name__ for check in HARNESS_CHECKS}
