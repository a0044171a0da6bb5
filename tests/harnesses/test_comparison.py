"""Each rule that compares witnesses is seen to fail: a true session in which one of them lies."""

import copy

import attrs
import pytest

from inspan_server.testing.replies import USAGE, said, shell

from .compare import check_seen
from .faults import FAULTS, Fault, run_fault, service

pytestmark = [pytest.mark.sandbox, pytest.mark.registry, pytest.mark.timeout(300)]

WORKING = Fault(
    name="background service",
    replies=lambda harness: [shell("echo one"), service(harness), said()],
)


@pytest.fixture(scope="module")
def seen(portal, world):
    """One true session with a tool, a service and three model calls."""
    return portal.call(run_fault, world, "codex", WORKING)


def lie(seen, change):
    """A copy in which one witness says something else."""
    told = copy.deepcopy({field.name: getattr(seen, field.name) for field in attrs.fields(type(seen))})
    change(told)
    return type(seen)(**told)


def records(told, kind):
    return [each for each in told["closed"]["agent_observations"]["records"] if each["kind"] == kind]


def drop_call(told):
    told["calls"] = told["calls"][1:]


def stray(told):
    told["strays"] = 1


def other_prompt(told):
    told["calls"][0].request["input"][-1]["content"][0]["text"] += "!"


def other_model(told):
    told["model"] = "org/other"


def other_group(told):
    told["looks"][1]["callers"][0]["leader_parent"] = 1


def other_network(told):
    told["looks"][0]["interfaces"].append("eth0")


def other_address(told):
    told["looks"][0]["elsewhere"].append("tcp 443")


def other_arguments(told):
    next(i for i in told["answer"]["output"] if i["type"] == "function_call")["arguments"] = "{}"


def other_output(told):
    next(i for i in told["answer"]["output"] if i["type"] == "function_call_output")["output"] += "x"


def other_words(told):
    told["answer"]["output"][-1]["content"][0]["text"] = "Else."


def no_tool_record(told):
    told["closed"]["agent_observations"]["records"].remove(records(told, "tool_call")[0])


def tool_before_it_was_asked_for(told):
    records(told, "tool_call")[0]["started_at"] -= 60


def tool_after_it_was_told(told):
    records(told, "tool_call")[0]["completed_at"] += 60


def reference_to_nothing(told):
    records(told, "agent_invocation")[0]["model_calls"][0]["response_id"] = "resp_none"


def no_reference(told):
    del records(told, "agent_invocation")[0]["model_calls"][1]


def more_tokens(told):
    told["answer"]["usage"]["input_tokens"] += 1


def fewer_cached_tokens(told):
    told["answer"]["usage"]["input_tokens_details"]["cached_tokens"] = 0


def no_usage_and_no_gap(told):
    told["answer"]["usage"] = None


def service_died(told):
    told["after"]["processes"] = told["before"]["processes"]


def somebody_lives_on(told):
    told["after"]["processes"].append({"pid": 99999, "line": "sleep 1", "name": "sleep"})


def files_left(told):
    told["after"]["sessions"] = ["/tmp/inspan-s/x"]


def not_confirmed(told):
    told["receipt"] = attrs.evolve(told["receipt"], cleanup_confirmed=False)


def other_exit_code(told):
    records(told, "sandbox")[0]["exit_code"] = 7


def not_gradable(told):
    told["gradable"] = False


def bad_close(told):
    told["close_status"] = 500


LIES = [
    drop_call, stray, other_prompt, other_model, other_group, other_network, other_address,
    other_arguments, other_output, other_words, no_tool_record, tool_before_it_was_asked_for,
    tool_after_it_was_told, reference_to_nothing, no_reference, more_tokens, fewer_cached_tokens,
    no_usage_and_no_gap, service_died, somebody_lives_on, files_left, not_confirmed, other_exit_code,
    not_gradable, bad_close,
]  # fmt: skip


def test_a_true_session_passes(seen):
    check_seen(lie(seen, lambda told: None), WORKING.prompt)
    assert len(seen.calls) == 3 and seen.answer["usage"]["input_tokens"] == 3 * USAGE["prompt_tokens"]


@pytest.mark.parametrize("change", LIES, ids=[change.__name__ for change in LIES])
def test_a_lie_is_seen(seen, change):
    with pytest.raises(AssertionError):
        check_seen(lie(seen, change), WORKING.prompt)


@pytest.mark.parametrize("fault", [fault.name for fault in FAULTS.values() if fault.files])
def test_files_that_were_not_written_are_seen(seen, fault):
    changed = lie(seen, lambda told: told["notes"].update(files=""))
    with pytest.raises(AssertionError):
        FAULTS[fault].check(changed, "codex")
