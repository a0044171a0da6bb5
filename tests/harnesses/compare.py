"""What a session reported, against what the gateway recorded and what the sandbox showed."""

from __future__ import annotations

GRADED = 200
CLOCK_S = 0.01
"""Codex's times are whole milliseconds."""


def check_seen(seen, prompt):
    """All rules that hold whatever the fault; each compares two witnesses."""
    assert seen.close_status == 200, seen.closed
    check_calls(seen, prompt)
    check_callers(seen)
    check_response(seen)
    check_tools(seen)
    check_references(seen)
    check_usage(seen)
    check_processes(seen)
    check_receipt(seen)


def check_calls(seen, prompt):
    """Every call belongs to the rollout, and shows the model the prompt as it was given."""
    assert seen.strays == 0
    assert len(seen.looks) == len(seen.calls)
    for call in seen.calls:
        assert prompt in texts_of_user(call.request)
        assert call.request["model"] == seen.model


def check_callers(seen):
    """Whoever calls the model is in the supervised group, and there is nothing else to be called."""
    for look in seen.looks:
        (supervisor,) = look["supervisors"]
        assert look["callers"], "nobody held the connection of the call"
        assert {each["leader_parent"] for each in look["callers"]} == {supervisor}
        assert look["interfaces"] == ["lo"]
        assert look["elsewhere"] == []
    assert len({each["group"] for look in seen.looks for each in look["callers"]}) == 1


def check_response(seen):
    """The output is what the model said, call by call, and what the tools answered as the model saw it."""
    if seen.status != GRADED:
        assert "output" not in seen.answer
        return
    output = seen.answer["output"]
    asked = [(i["call_id"], i["arguments"]) for i in output if i["type"] == "function_call"]
    assert asked == [(id_, arguments) for call in seen.answered for id_, arguments in calls_of(call.response)]
    told = {i["call_id"]: i["output"] for i in output if i["type"] == "function_call_output"}
    shown = {id_: text for call in seen.calls for id_, text in outputs_of(call.request)}
    # The last tool's output may have come too late for the model to be asked again.
    assert {id_: told[id_] for id_ in shown} == shown
    said = [part["text"] for i in output if i["type"] == "message" for part in i["content"]]
    kept = ("answered", "dropped") if "model_answer_broken_off" in seen.gaps else ("answered",)
    heard = [(call, text_of(call.response)) for call in seen.calls if call.outcome in kept]
    spoken = [(call, text) for call, text in heard if text]
    assert len(said) == len(spoken)
    for ours, (call, theirs) in zip(said, spoken, strict=True):
        assert ours == theirs if call.outcome == "answered" else theirs.startswith(ours)


def check_tools(seen):
    """Each call of the model for a tool is a record, but for those that the harness threw away."""
    ids = {id_ for call in seen.answered for id_, _ in calls_of(call.response)}
    if "model_attempt_discarded" in seen.gaps:
        items = [i for i in seen.answer.get("output", ()) if i["type"] == "function_call"]
        ids -= {item["call_id"] for item in items if item["status"] == "incomplete"}
    tools = seen.records_of("tool_call")
    assert {tool["tool_call_id"] for tool in tools} == ids and len(tools) == len(ids)
    assert {tool["sandbox_id"] for tool in tools} <= {seen.sandbox_id}
    for tool in tools:
        (asking,) = [c for c in seen.answered if tool["tool_call_id"] in dict(calls_of(c.response))]
        later = [c for c in seen.calls if tool["tool_call_id"] in dict(outputs_of(c.request))]
        assert tool["started_at"] is None or asking.started_at <= tool["started_at"] + CLOCK_S
        assert not (later and tool["completed_at"]) or tool["completed_at"] <= later[0].started_at + CLOCK_S


def check_references(seen):
    """References name the gateway's own answers, each once and in order; one that is missing has a gap."""
    referred = [
        ref["response_id"] for record in seen.records_of("agent_invocation") for ref in record["model_calls"]
    ]
    known = [call.response_id for call in seen.calls if call.status == 200]
    assert [id_ for id_ in known if id_ in referred] == referred
    whole = [call.response_id for call in seen.answered]
    assert set(whole) <= set(referred) or "model_call_reference_unavailable" in seen.gaps


def check_usage(seen):
    """The gateway's count, or unknown with a gap."""
    response = seen.answer if seen.status == GRADED else {}
    usage = response.get("usage")
    if usage is None:
        graded_unknown = "usage_unavailable" in seen.gaps
        assert graded_unknown or seen.status != GRADED
        return
    spent = [call.usage for call in seen.calls if call.status == 200]
    assert None not in spent and "usage_unavailable" not in seen.gaps
    counted = {
        name: sum(part(each, name) for each in spent) for name in ("input", "output", "cached", "reasoning")
    }
    assert counted == {name: part(usage, name) for name in counted}
    assert usage["total_tokens"] == counted["input"] + counted["output"]


def part(usage, name):
    """A part of a usage in the words of either API."""
    if name in ("cached", "reasoning"):
        chat, ours = {"cached": ("prompt", "input"), "reasoning": ("completion", "output")}[name]
        details = usage.get(f"{chat}_tokens_details") or usage.get(f"{ours}_tokens_details")
        return details[f"{name}_tokens"]
    return usage.get(
        {"input": "prompt_tokens", "output": "completion_tokens"}[name], usage.get(f"{name}_tokens")
    )


def check_processes(seen):
    """Whoever lives on is in the report of processes, and whoever it calls killed is gone."""
    report = seen.processes
    assert report is not None
    before = {each["pid"] for each in seen.before["processes"]}
    alive = {each["pid"] for each in seen.after["processes"]} - before
    told = {
        kind: {each.pid for each in getattr(report, kind)} for kind in ("killed", "preserved", "unfinished")
    }
    assert alive == told["preserved"] | told["unfinished"]
    assert not alive & told["killed"]
    kinds = {f"processes_{kind}" for kind, pids in told.items() if pids}
    assert {gap for gap in seen.gaps if gap.startswith("processes_")} == kinds


def check_receipt(seen):
    """The end was proven, the session's files are gone, and the record of the sandbox says the same."""
    assert seen.gradable == (seen.status == GRADED)
    receipt = seen.receipt
    assert receipt is not None and receipt.cleanup_confirmed and receipt.error is None
    assert seen.after["sessions"] == []
    (sandbox,) = seen.records_of("sandbox")
    assert (sandbox["sandbox_id"], sandbox["exit_code"]) == (seen.sandbox_id, receipt.return_code)
    assert (sandbox["outcome"] == "timeout") == receipt.timed_out


def texts_of_user(request):
    """What the user says in a model request of either API."""
    found = []
    for item in request.get("messages", request.get("input")):
        if item.get("role") == "user":
            content = item["content"]
            found.append(content if isinstance(content, str) else "".join(part["text"] for part in content))
    return found


def calls_of(response):
    """Tool calls of an answer of either API: id and arguments."""
    if "choices" in response:
        message = response["choices"][0]["message"]
        return [(each["id"], each["function"]["arguments"]) for each in message.get("tool_calls") or ()]
    items = [item for item in response["output"] if item["type"] == "function_call"]
    return [(item["call_id"], item["arguments"]) for item in items]


def text_of(response):
    if "choices" in response:
        return response["choices"][0]["message"].get("content")
    return "".join(
        part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]
    )


def outputs_of(request):
    """Tool outputs in a model request of either API: call id and text."""
    for item in request.get("messages", request.get("input")):
        if item.get("role") == "tool":
            content = item["content"]
            yield item["tool_call_id"], content if isinstance(content, str) else joined(content)
        elif item.get("type") == "function_call_output":
            yield (
                item["call_id"],
                item["output"] if isinstance(item["output"], str) else joined(item["output"]),
            )


def joined(parts):
    return "".join(part.get("text", "") for part in parts)
