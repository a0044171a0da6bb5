"""A trace as the output items of a Responses object, in order; nothing that the model did is dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import define, field

from inspan_core.observations import ObservationGap
from inspan_core.run_trace import OpenCalls
from inspan_pi.trace import Message, Trace

RECEIVED = "\n\nReceived arguments:\n"
"""Pi 1.6.0 ends `argumentsError` with this and the arguments as the model wrote them."""


@define
class Output:
    """Output items and what could not become one."""

    items: list[dict[str, Any]] = field(factory=list)
    gaps: list[ObservationGap] = field(factory=list)
    text: str = ""

    def _gap(self, code: str, detail: str) -> None:
        self.gaps.append(ObservationGap(code=code, detail=detail))

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{len(self.items)}"

    def answer(self, message: Message) -> None:
        """Add the model's message: its blocks in order."""
        failed = message.body.get("stopReason") in ("error", "aborted", "length")
        for index, block in enumerate(message.content):
            kind, text = block.get("type"), block.get("text")
            if kind == "thinking" and isinstance(block.get("thinking"), str):
                summary = [{"type": "summary_text", "text": block["thinking"]}]
                self.items.append({"type": "reasoning", "id": self._id("rs"), "summary": summary})
            elif kind == "text" and isinstance(text, str):
                content = [{"type": "output_text", "text": text, "annotations": []}]
                status = "incomplete" if failed else "completed"
                head = {"type": "message", "id": self._id("msg"), "role": "assistant", "status": status}
                self.items.append({**head, "content": content})
                self.text = text
            elif kind == "toolCall":
                self._call(block, message.raw_arguments.get(str(index)))
            else:
                self._gap("content_block_dropped", f"a block of type {str(kind)[:80]!r} has no equivalent")

    def _call(self, block: Mapping[str, Any], raw: Any) -> None:
        arguments = raw if isinstance(raw, str) else self._arguments(block)
        self.items.append(
            {
                "type": "function_call",
                "id": self._id("fc"),
                "call_id": str(block.get("id")),
                "name": str(block.get("name")),
                "arguments": arguments,
                "status": "completed",
            }
        )

    def _arguments(self, block: Mapping[str, Any]) -> str:
        error = block.get("argumentsError")
        if not isinstance(error, str):
            return json.dumps(block.get("arguments", {}), ensure_ascii=False)
        _, separator, received = error.partition(RECEIVED)
        if not separator:
            self._gap("tool_arguments_unrecoverable", f"Pi kept only its error: {error[:200]}")
        return received

    def result(self, message: Message) -> None:
        """Add a tool's result."""
        texts = []
        for block in message.content:
            if block.get("type") == "text" and isinstance(block.get("text"), str):
                texts.append(block["text"])
            else:
                kind = str(block.get("type"))[:80]
                self._gap("tool_output_dropped", f"a part of type {kind!r} of a tool's output is not text")
        self.items.append(
            {
                "type": "function_call_output",
                "id": self._id("fco"),
                "call_id": str(message.body.get("toolCallId")),
                "output": "\n".join(texts),
                "status": "completed",
            }
        )


def to_output(trace: Trace) -> Output:
    """Convert the whole trace."""
    output = Output()
    calls = OpenCalls()
    for message in trace.messages:
        if message.discarded:
            error = str(message.body.get("errorMessage"))[:200]
            output._gap("model_attempt_discarded", f"a failed model call was repeated by Pi: {error}")
            continue
        if message.role == "assistant":
            output.answer(message)
            for block in message.content:
                if block.get("type") == "toolCall":
                    calls.called(str(block.get("id")))
        else:
            output.result(message)
            calls.answered(str(message.body.get("toolCallId")))
    output.gaps += calls.gaps()
    return output
