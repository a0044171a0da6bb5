"""A trace as the output items of a Responses object, in order; nothing that the model did is dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import define, field

from inspan_codex.trace import OUTPUTS, Item, Trace
from inspan_core.observations import ObservationGap
from inspan_core.run_trace import OpenCalls


@define
class Output:
    """Output items and what could not become one."""

    items: list[dict[str, Any]] = field(factory=list)
    gaps: list[ObservationGap] = field(factory=list)

    def _gap(self, code: str, detail: str) -> None:
        self.gaps.append(ObservationGap(code=code, detail=detail))

    def take(self, item: Item) -> None:
        """Add one item."""
        body, kind = item.body, item.kind
        if kind == "message":
            texts = self._texts(body.get("content"), "content_block_dropped")
            content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
            self._add("msg", body, type="message", role="assistant", status="completed", content=content)
        elif kind == "reasoning":
            texts = self._texts(body.get("summary"), "content_block_dropped")
            texts = texts or self._texts(body.get("content"), "content_block_dropped")
            self._add("rs", body, type=kind, summary=[{"type": "summary_text", "text": t} for t in texts])
        elif kind == "function_call":
            self._call(body, body.get("arguments"))
        elif kind == "custom_tool_call":
            self._gap(
                "custom_tool_call_converted", f"the text of tool {body.get('name')!r:.80} became `input`"
            )
            self._call(body, json.dumps({"input": body.get("input")}, ensure_ascii=False))
        elif kind in OUTPUTS:
            given = body.get("output")
            text = given if isinstance(given, str) else "\n".join(self._texts(given, "tool_output_dropped"))
            self._add(
                "fco",
                body,
                type="function_call_output",
                call_id=item.call_id,
                output=text,
                status="completed",
            )
        else:
            self._gap("item_dropped", f"an item of type {kind[:80]!r} has no equivalent")

    def _call(self, body: Mapping[str, Any], arguments: Any) -> None:
        call = {"call_id": str(body.get("call_id")), "name": str(body.get("name"))}
        if isinstance(body.get("namespace"), str):
            call["namespace"] = body["namespace"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        self._add("fc", body, type="function_call", **call, arguments=text, status="completed")

    def _add(self, prefix: str, body: Mapping[str, Any], **item: Any) -> None:
        given = body.get("id")
        identity = given if isinstance(given, str) else f"{prefix}_{len(self.items)}"
        self.items.append({"type": item.pop("type"), "id": identity, **item})

    def _texts(self, parts: Any, code: str) -> list[str]:
        """Text of a list of parts; what is not text is a gap."""
        texts = []
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                texts.append(part["text"])
            else:
                kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
                self._gap(code, f"a part of type {str(kind)[:80]!r} is not text")
        return texts


def to_output(trace: Trace) -> Output:
    """Convert the whole trace; a compaction's summary is its record's, not the answer's."""
    output = Output()
    calls = OpenCalls()
    for item in trace.items:
        if item.is_summary:
            continue
        output.take(item)
        if item.kind in ("function_call", "custom_tool_call"):
            calls.called(item.call_id)
        elif item.kind in OUTPUTS:
            calls.answered(item.call_id)
    output.gaps += calls.gaps()
    for message in trace.repeated:
        detail = f"a failed model call was repeated by Codex: {message[:200]}"
        output.gaps.append(ObservationGap(code="model_attempt_discarded", detail=detail))
    return output
