"""Responses answers, whole and as events: made from Chat Completions answers, whole or in chunks.

One path serves scripted replies and upstreams that only have Chat Completions, so what a harness gets from
a script is made as it is from a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, field

from inspan_server.model.tool_names import ToolNames

Event = dict[str, Any]
# Fields that an answer repeats from its request.
ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": None,
    "temperature": None,
    "text": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
}
ENDINGS = {"length": "max_output_tokens", "content_filter": "content_filter"}


@define(kw_only=True)
class _Call:
    """A tool call that is being written."""

    flat: str
    index: int = 0
    item: dict[str, Any] = field(factory=dict)
    arguments: list[str] = field(factory=list)

    @property
    def kind(self) -> str:
        is_function = self.item["type"] == "function_call"
        return "function_call_arguments" if is_function else "custom_tool_call_input"


@define(kw_only=True)
class ResponseStream:
    """Turns the chunks of a Chat Completions stream into the events of a Responses stream.

    Attributes:
        response: The response as it stands; whole after `end`.
    """

    request: Mapping[str, Any]
    names: ToolNames
    response_id: str
    created_at: int
    new_call_id: Callable[[], str]
    response: dict[str, Any] = field(init=False)
    has_ended: bool = field(default=False, init=False)
    _sequence: int = field(default=0, init=False)
    _open: dict[str, Any] | None = field(default=None, init=False)
    _calls: dict[int, _Call] = field(factory=dict, init=False)
    _finish_reason: str | None = field(default=None, init=False)
    _usage: dict[str, Any] | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        echoed = {key: self.request.get(key, default) for key, default in ECHOED.items()}
        self.response = {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_at,
            "status": "in_progress",
            "model": self.request.get("model"),
            "output": [],
            "usage": None,
            "error": None,
            "incomplete_details": None,
            **echoed,
        }

    def begin(self) -> list[Event]:
        """The events before the first chunk."""
        return [
            self._event("response.created", response=dict(self.response, output=[])),
            self._event("response.in_progress", response=dict(self.response, output=[])),
        ]

    def feed(self, chunk: Mapping[str, Any]) -> list[Event]:
        """The events that one chunk leads to."""
        events: list[Event] = []
        usage = chunk.get("usage")
        if isinstance(usage, Mapping):
            self._usage = responses_usage(usage)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, Mapping) or choice.get("index", 0) != 0:
                continue
            delta = choice.get("delta")
            if isinstance(delta, Mapping):
                events += self._delta(delta)
            if isinstance(choice.get("finish_reason"), str):
                self._finish_reason = choice["finish_reason"]
        return events

    @property
    def is_finished(self) -> bool:
        """Whether the model said why it stopped: only then is the answer whole."""
        return self._finish_reason is not None

    def end(self) -> list[Event]:
        """The events after the last chunk."""
        events = [*self._close(), *self._end_calls()]
        reason = ENDINGS.get(self._finish_reason or "")
        status = "completed" if reason is None else "incomplete"
        details = None if reason is None else {"reason": reason}
        self.response.update(status=status, usage=self._usage, incomplete_details=details)
        self.has_ended = True
        return [*events, self._event(f"response.{status}", response=self.response)]

    def fail(self, error: Mapping[str, Any]) -> list[Event]:
        """The events of an answer that the model could not finish."""
        code = error.get("code")
        shown = {"code": code if isinstance(code, str) else "server_error", "message": error.get("message")}
        self.response.update(status="failed", usage=self._usage, error=shown)
        self.has_ended = True
        return [self._event("response.failed", response=self.response)]

    def _event(self, kind: str, **more: Any) -> Event:
        event = {"type": kind, "sequence_number": self._sequence, **more}
        self._sequence += 1
        return event

    def _delta(self, delta: Mapping[str, Any]) -> list[Event]:
        events: list[Event] = []
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            events += self._text("reasoning", reasoning)
        if isinstance(delta.get("content"), str) and delta["content"]:
            events += self._text("message", delta["content"])
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, Mapping):
                events += [*self._close(), *self._call(call)]
        return events

    def _text(self, kind: str, text: str) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open["type"] != kind:
            events += [*self._close(), *self._open_text(kind)]
        item = self._open
        assert item is not None
        item["content"][0]["text"] += text
        place = self._place(item)
        name = "reasoning_text" if kind == "reasoning" else "output_text"
        more: dict[str, Any] = {} if kind == "reasoning" else {"logprobs": []}
        return [*events, self._event(f"response.{name}.delta", **place, delta=text, **more)]

    def _open_text(self, kind: str) -> list[Event]:
        output = self.response["output"]
        item: dict[str, Any]
        part: dict[str, Any]
        if kind == "reasoning":
            item = {"type": "reasoning", "id": self._item_id("rs"), "summary": []}
            part = {"type": "reasoning_text", "text": ""}
        else:
            item = {"type": "message", "id": self._item_id("msg"), "role": "assistant"}
            item["status"] = "in_progress"
            part = {"type": "output_text", "text": "", "annotations": []}
        shown = {**item, "content": []}
        output.append({**item, "content": [part]})
        self._open = output[-1]
        index = len(output) - 1
        added = self._event("response.output_item.added", output_index=index, item=shown)
        place = self._place(output[-1])
        return [added, self._event("response.content_part.added", **place, part=dict(part))]

    def _close(self) -> list[Event]:
        """End the text that is being written, if any."""
        item, self._open = self._open, None
        if item is None:
            return []
        place, part = self._place(item), item["content"][0]
        name = part["type"]
        events = [
            self._event(f"response.{name}.done", **place, text=part["text"]),
            self._event("response.content_part.done", **place, part=part),
        ]
        if item["type"] == "message":
            item["status"] = "completed"
        done = self._event("response.output_item.done", output_index=place["output_index"], item=item)
        return [*events, done]

    def _call(self, piece: Mapping[str, Any]) -> list[Event]:
        """Take one piece of a tool call; its first one has the name."""
        index = piece.get("index")
        number = index if isinstance(index, int) else len(self._calls)
        call = self._calls.get(number)
        function = piece.get("function")
        given = function if isinstance(function, Mapping) else {}
        events: list[Event] = []
        if call is None:
            call = self._calls[number] = _Call(flat=str(given.get("name") or ""))
            call.index = len(self.response["output"])
            call_id = piece.get("id")
            head = {"id": self._item_id("fc"), "call_id": call_id or self.new_call_id()}
            call.item = {**self.names.call_item(call.flat, ""), **head, "status": "in_progress"}
            self.response["output"].append(call.item)
            events.append(
                self._event("response.output_item.added", output_index=call.index, item=dict(call.item))
            )
        if isinstance(given.get("arguments"), str) and given["arguments"]:
            call.arguments.append(given["arguments"])
            # Free text is only known once its JSON is whole.
            if call.kind == "function_call_arguments":
                events.append(self._call_event(call, "delta", delta=given["arguments"]))
        return events

    def _end_calls(self) -> list[Event]:
        events: list[Event] = []
        for _, call in sorted(self._calls.items()):
            written = "arguments" if call.kind == "function_call_arguments" else "input"
            whole = self.names.call_item(call.flat, "".join(call.arguments))
            call.item.update({written: whole[written], "status": "completed"})
            if written == "input":
                events.append(self._call_event(call, "delta", delta=call.item[written]))
            events.append(self._call_event(call, "done", **{written: call.item[written]}))
            done = self._event("response.output_item.done", output_index=call.index, item=call.item)
            events.append(done)
        return events

    def _call_event(self, call: _Call, what: str, **more: str) -> Event:
        place = {"item_id": call.item["id"], "output_index": call.index}
        return self._event(f"response.{call.kind}.{what}", **place, **more)

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self.response_id.removeprefix('resp_')}_{len(self.response['output'])}"

    def _place(self, item: Mapping[str, Any]) -> dict[str, Any]:
        index = self.response["output"].index(item)
        return {"item_id": item["id"], "output_index": index, "content_index": 0}


def whole_response(stream: ResponseStream, answer: Mapping[str, Any]) -> dict[str, Any]:
    """A plain Chat Completions answer as a Responses object."""
    choices = answer.get("choices")
    for choice in choices[:1] if isinstance(choices, list) else ():
        if isinstance(choice, Mapping) and isinstance(choice.get("message"), Mapping):
            stream.feed({"choices": [{"delta": choice["message"]}]})
            stream.feed({"choices": [{"finish_reason": choice.get("finish_reason") or "stop"}]})
    stream.feed({"usage": answer.get("usage")})
    stream.end()
    return stream.response


def responses_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Usage of Chat Completions in the names of Responses; details only where they were told."""
    shown: dict[str, Any] = {
        "input_tokens": usage.get("prompt_tokens"),
        "output_tokens": usage.get("completion_tokens"),
        "total_tokens": usage.get("total_tokens"),
    }
    for key, source, detail in (
        ("input_tokens_details", "prompt_tokens_details", "cached_tokens"),
        ("output_tokens_details", "completion_tokens_details", "reasoning_tokens"),
    ):
        details = usage.get(source)
        known = details.get(detail) if isinstance(details, Mapping) else None
        if known is not None:
            shown[key] = {detail: known}
    return shown
