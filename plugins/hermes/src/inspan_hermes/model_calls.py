"""Watches every model call of Hermes from inside its process; travels into the sandbox beside the runner.

Standard library only. Hermes keeps neither the ids of answers nor what it threw away (malformed arguments,
answers that broke off), and merges the rest. So the one method through which all of its model calls go, the
OpenAI client's, is wrapped: requests are checked against what was asked for, and answers are recorded as
they came. Events, each with a time (`Trace.say`)::

    model.request   call, purpose, stream, settings, since, messages: the conversation from index `since` on
    model.answer    call, response_id, finish_reason, usage, message, whole
    model.error     call, status, body, error, message
    settings.violated   field, asked, sent: the call was not made

`purpose` is ``turn`` (the agent's loop), ``limit`` (the summary when turns ran out), ``compaction`` or
``auxiliary``.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from inspan_core import shim

BODY_LIMIT_CHARS = 64 * 1024
TEXT_LIMIT_CHARS = 16 * 1024 * 1024
LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")
SHOWN = ("model", "temperature", "top_p", "reasoning_effort", "stream_options", *LIMIT_FIELDS)


class Trace:
    """The run's events, written as they come, from whichever thread they come."""

    def __init__(self, folder: str) -> None:
        self.events = shim.Events(os.path.join(folder, "events.jsonl"))
        self.lock = threading.Lock()

    def say(self, kind: str, /, **data: Any) -> None:
        """Write one event; what is no JSON is written as text."""
        event = {"type": kind, **data}
        line = json.dumps({"at": time.time(), "event": event}, default=str).encode()
        with self.lock:
            if len(line) > shim.LINE_LIMIT_BYTES:
                kept = {key: value for key, value in event.items() if isinstance(value, (int, float, bool))}
                head = line[:4096].decode("utf-8", "replace")
                beyond = len(line) - shim.LINE_LIMIT_BYTES
                record = {"at": time.time(), "event": {"type": kind, **kept}, "cut": beyond, "head": head}
                line = json.dumps(record).encode()
            self.events.keep(line)


class SettingsNotApplied(RuntimeError):
    """Hermes was about to ask the model with other settings than the request's."""


class ModelCalls:
    """Wraps the client's method; `asked` are the settings that each turn's call must carry.

    Args:
        trace: Receives the events.
        asked: ``temperature``, ``top_p``, ``reasoning_effort`` and ``max_tokens``, those that were asked for.
    """

    def __init__(self, trace: Trace, asked: dict[str, Any]) -> None:
        self.trace = trace
        self.asked = asked
        self.count = 0
        self.purpose: str | None = None
        self.seen: list[str] = []
        self.lock = threading.Lock()

    def watch(self, client_class: Any) -> None:
        """Put the watch in place of the class's ``create``."""
        create = client_class.create

        def watched(resource: Any, *args: Any, **request: Any) -> Any:
            return self.call(lambda: create(resource, *args, **request), request)

        client_class.create = watched

    def call(self, ask: Callable[[], Any], request: dict[str, Any]) -> Any:
        """Make one call, and record it."""
        with self.lock:
            self.count += 1
            number = self.count
            purpose = self.purpose or ("turn" if request.get("tools") else "auxiliary")
            self._limit(request)
            self._note(number, purpose, request)
            if purpose == "turn":
                self._check(request)
        try:
            answer = ask()
        except Exception as error:
            self.failed(number, error)
            raise
        if request.get("stream") and hasattr(answer, "_iterator"):
            answer._iterator = self.follow(number, answer._iterator)
        elif hasattr(answer, "model_dump"):
            self.whole(number, answer.model_dump())
        else:
            self.trace.say("model.unreadable", call=number, answer=type(answer).__name__)
        return answer

    def _limit(self, request: dict[str, Any]) -> None:
        """Hermes raises the limit of an answer that was cut; what was asked for is the most."""
        limit = self.asked.get("max_tokens")
        for field in LIMIT_FIELDS:
            if limit is not None and isinstance(request.get(field), int):
                request[field] = min(request[field], limit)

    def _check(self, request: dict[str, Any]) -> None:
        for field, asked in self.asked.items():
            sent = request.get(field)
            if field == "max_tokens" and sent is None:
                sent = request.get("max_completion_tokens")
            if sent != asked:
                self.trace.say("settings.violated", field=field, asked=asked, sent=sent)
                raise SettingsNotApplied(f"{field} is {sent!r} in the model request, asked was {asked!r}")

    def _note(self, number: int, purpose: str, request: dict[str, Any]) -> None:
        settings = {key: request[key] for key in SHOWN if key in request}
        settings["tools"] = [tool.get("function", {}).get("name") for tool in request.get("tools") or ()]
        self.trace.say(
            "model.request",
            call=number,
            purpose=purpose,
            stream=bool(request.get("stream")),
            settings=settings,
            **self.new_messages(request.get("messages") or [], keep=purpose in ("turn", "limit")),
        )

    def new_messages(self, messages: list[Any], *, keep: bool = True) -> dict[str, Any]:
        """The conversation from the first message that is not as it was the last time."""
        texts = [json.dumps(message, sort_keys=True, default=str) for message in messages]
        since = 0
        if keep:
            while since < min(len(texts), len(self.seen)) and texts[since] == self.seen[since]:
                since += 1
            self.seen = texts
        return {"since": since, "messages": messages[since:]}

    def follow(self, number: int, chunks: Iterator[Any]) -> Iterator[Any]:
        """Pass the chunks on, and put the answer together from them as they came."""
        answer = Assembly()
        try:
            for chunk in chunks:
                answer.take(chunk.model_dump())
                yield chunk
        except Exception as error:
            answer.fault = f"{type(error).__name__}: {error}"
            self.failed(number, error)
            raise
        finally:
            self.trace.say("model.answer", call=number, **answer.told())

    def whole(self, number: int, body: dict[str, Any]) -> None:
        """A plain answer."""
        answer = Assembly()
        choices = [{**choice, "delta": choice.get("message")} for choice in body.get("choices") or ()]
        answer.take({**body, "choices": choices})
        self.trace.say("model.answer", call=number, **answer.told())

    def failed(self, number: int, error: Exception) -> None:
        """An error status, a connection that did not come about, or one that broke."""
        response = getattr(error, "response", None)
        body = None
        if response is not None:
            try:
                body = response.text[:BODY_LIMIT_CHARS]
            except Exception as unread:
                body = f"(unread: {type(unread).__name__})"
        status = getattr(error, "status_code", None)
        if body is None and isinstance(getattr(error, "body", None), (dict, str)):
            body = json.dumps(error.body)[:BODY_LIMIT_CHARS]  # type: ignore[attr-defined]
        kind, message = type(error).__name__, str(error)[:BODY_LIMIT_CHARS]
        self.trace.say("model.error", call=number, status=status, body=body, error=kind, message=message)


class Assembly:
    """An answer from its chunks: text, reasoning and tool calls word for word."""

    def __init__(self) -> None:
        self.response_id: Any = None
        self.finish_reason: Any = None
        self.usage: Any = None
        self.fault: str | None = None
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.calls: dict[int, dict[str, str]] = {}

    def take(self, chunk: dict[str, Any]) -> None:
        """Add one chunk."""
        self.response_id = chunk.get("id") or self.response_id
        self.usage = chunk.get("usage") or self.usage
        for choice in (chunk.get("choices") or ())[:1]:
            delta = choice.get("delta") or {}
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            for key, parts in (("content", self.content), ("refusal", self.refusal)):
                if isinstance(delta.get(key), str):
                    parts.append(delta[key])
            reasoning = delta.get("reasoning_content") or delta.get("reasoning")
            if isinstance(reasoning, str):
                self.reasoning.append(reasoning)
            for position, call in enumerate(delta.get("tool_calls") or ()):
                self._call(call, position)

    def _call(self, given: dict[str, Any], position: int) -> None:
        index = given.get("index")
        call = self.calls.setdefault(
            position if index is None else index, {"id": "", "name": "", "arguments": ""}
        )
        function = given.get("function") or {}
        call["id"] = given.get("id") or call["id"]
        call["name"] = function.get("name") or call["name"]
        call["arguments"] += function.get("arguments") or ""

    def told(self) -> dict[str, Any]:
        """What the event says."""
        message: dict[str, Any] = {
            "content": "".join(self.content)[:TEXT_LIMIT_CHARS],
            "reasoning": "".join(self.reasoning)[:TEXT_LIMIT_CHARS],
            "tool_calls": [self.calls[index] for index in sorted(self.calls)],
        }
        if self.refusal:
            message["refusal"] = "".join(self.refusal)
        return {
            "response_id": self.response_id,
            "finish_reason": self.finish_reason,
            "usage": self.usage,
            "message": message,
            "whole": self.finish_reason is not None and self.fault is None,
            "fault": self.fault,
        }
