"""The trace as items of a Responses object, in order; nothing that the model did is dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import define, field

from inspan_core.observations import ObservationGap
from inspan_hermes.trace import Call, Execution, Trace, text


@define(kw_only=True)
class MadeCall:
    """A tool call of the model, and what became of it."""

    call_id: str
    name: str
    output: str | None = None
    execution: Execution | None = None


@define
class Output:
    """Output items, what Hermes itself put between them, and what could not become one.

    Attributes:
        items: Items of the response.
        conversation: The same with Hermes' own messages to the model.
    """

    items: list[dict[str, Any]] = field(factory=list)
    conversation: list[dict[str, Any]] = field(factory=list)
    tools: list[MadeCall] = field(factory=list)
    gaps: list[ObservationGap] = field(factory=list)

    def add(self, prefix: str, **item: Any) -> None:
        """One item of the response."""
        made = {"type": item.pop("type"), "id": f"{prefix}_{len(self.items)}", **item}
        self.items.append(made)
        self.conversation.append(made)

    def gap(self, code: str, detail: str) -> None:
        self.gaps.append(ObservationGap(code=code, detail=detail))


def to_output(trace: Trace) -> Output:
    """Convert the whole trace."""
    output = Output()
    calls = trace.conversation
    executions = {call_id: list(runs) for call_id, runs in trace.executions.items()}
    for position, call in enumerate(calls):
        _shown(output, call.messages, is_first=position == 0)
        if call.was_answered:
            _answer(output, call, is_kept=_is_kept(call, calls[position + 1 :]), executions=executions)
    _shown(output, trace.last_messages, is_first=False)
    for made in output.tools:
        if made.output is None and made.execution is not None and made.execution.result is not None:
            _result(output, made, made.execution.result)
        elif made.output is None:
            output.gap("tool_result_missing", f"tool call {made.call_id[:80]!r} has no result")
    return output


def _is_kept(call: Call, later: list[Call]) -> bool:
    """Whether Hermes took the answer into the conversation: the next request shows it, if there is one."""
    if not later:
        return call.is_whole
    return any(message.get("role") == "assistant" for message in later[0].messages)


def _shown(output: Output, messages: list[Mapping[str, Any]], *, is_first: bool) -> None:
    """Messages that a request showed for the first time: results of tools, and Hermes' own words."""
    inserted = 0
    for message in messages:
        role = message.get("role")
        if role == "tool":
            call_id = text(message.get("tool_call_id"))
            waiting = [made for made in output.tools if made.call_id == call_id and made.output is None]
            if waiting:
                _result(output, waiting[0], _plain(message.get("content")))
            elif not is_first and all(made.call_id != call_id for made in output.tools):
                output.gap("tool_call_missing", f"a result for {call_id[:80]!r} has no call in the trace")
        elif role in ("user", "system", "developer") and not is_first:
            inserted += 1
            item = {"role": role, "content": _plain(message.get("content"))}
            output.conversation.append(item)
    if inserted:
        heads = "; ".join(item["content"][:120] for item in output.conversation[-inserted:] if "role" in item)
        output.gap("harness_message_inserted", f"Hermes put {inserted} messages of its own in: {heads}")


def _answer(output: Output, call: Call, *, is_kept: bool, executions: dict[str, list[Execution]]) -> None:
    status = "completed" if call.is_whole and is_kept else "incomplete"
    reasoning, content = text(call.message.get("reasoning")), text(call.message.get("content"))
    content = content or text(call.message.get("refusal"))
    if reasoning:
        output.add("rs", type="reasoning", summary=[{"type": "summary_text", "text": reasoning}])
    if content or (call.is_whole and not call.tool_calls and is_kept):
        parts = [{"type": "output_text", "text": content, "annotations": []}]
        output.add("msg", type="message", role="assistant", status=status, content=parts)
    for given in call.tool_calls:
        made = MadeCall(call_id=text(given.get("id")), name=text(given.get("name")))
        runs = executions.get(made.call_id)
        made.execution = runs.pop(0) if runs and is_kept else None
        arguments = text(given.get("arguments"))
        names = {"call_id": made.call_id, "name": made.name}
        output.add("fc", type="function_call", **names, arguments=arguments, status=status)
        if is_kept:
            output.tools.append(made)
    if not is_kept:
        what = "broke off" if not call.is_whole else f"ended with {call.finish_reason!r}"
        head = (content or json.dumps(call.tool_calls, default=str))[:200]
        output.gap("model_attempt_discarded", f"an answer that {what} was not kept by Hermes: {head}")
    elif not call.is_whole:
        output.gap(
            "model_answer_broken_off", f"an answer broke off and was kept as far as it came: {content[:200]}"
        )


def _result(output: Output, made: MadeCall, result: str) -> None:
    made.output = result
    output.add("fco", type="function_call_output", call_id=made.call_id, output=result, status="completed")


def _plain(content: Any) -> str:
    """A message's content as text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        if all(isinstance(part, str) for part in parts) and len(parts) == len(content):
            return "\n".join(parts)  # type: ignore[arg-type]
    return "" if content is None else json.dumps(content, ensure_ascii=False)
