"""What the gateway saw: one record for each model call, bounded in number and size, without credentials."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
from attrs import define, field, frozen

CallOutcome = Literal["answered", "refused", "dropped", "client_gone"]


@frozen(kw_only=True)
class ModelCall:
    """One model call of a rollout.

    Attributes:
        model_call_id: Unique, for observations to refer to.
        token_capture: Whether the path carried the ``training-token-capture`` segment.
        route: The path below the rollout prefix, for example ``"/v1/chat/completions"``.
        request: The body as JSON, or ``{"truncated": true, "size_bytes", "head"}`` beyond the bound.
        response: The assembled answer, or the error body; bounded likewise; None when there was none.
        response_id: The answer's own id, or None.
        status: The HTTP status, or None when the client went before there was one.
        started_at: Unix seconds.
        usage: As answered; None when the answer had none.
        attempt: 1 for a new request, n + 1 when the same body came after n answers that were not good.
        streamed: Whether the request asked for a stream.
        cookie_returned: Whether the rollout's cookie came back; None on the first call.
        outcome: ``answered`` (status below 400), ``refused`` (an error status), ``dropped`` (the script
            broke the connection), ``client_gone`` (the harness went before the answer).
    """

    model_call_id: str
    rollout_key: str
    token_capture: bool
    route: str
    request: Any
    response: Any
    response_id: str | None
    status: int | None
    started_at: float
    duration_ms: float
    usage: Mapping[str, Any] | None
    attempt: int
    streamed: bool
    cookie_returned: bool | None
    outcome: CallOutcome


@define
class _RolloutCalls:
    calls: list[ModelCall] = field(factory=list)
    held_bytes: int = 0
    not_recorded: int = 0


@define(kw_only=True)
class Capture:
    """Keeps the records of all rollouts in memory.

    Attributes:
        max_calls: Calls kept for each rollout; later ones are only counted (`not_recorded`).
        max_body_bytes: Longest request or response kept whole.
        max_rollout_bytes: Sum of bodies kept for each rollout; later bodies are cut to nothing.
        max_rollouts: Rollouts kept; calls of later ones are only counted.
        max_strays: Paths kept of calls that carried no rollout prefix.
        observe: Called with each call as it was kept; must not block.
    """

    max_calls: int = 2000
    max_body_bytes: int = 1024 * 1024
    max_rollout_bytes: int = 64 * 1024 * 1024
    max_rollouts: int = 100_000
    max_strays: int = 100
    observe: Callable[[ModelCall], None] | None = None
    stray_calls: int = field(default=0, init=False)
    unauthorized_calls: int = field(default=0, init=False)
    calls_of_refused_rollouts: int = field(default=0, init=False)
    _strays: list[str] = field(factory=list, init=False)
    _rollouts: dict[str, _RolloutCalls] = field(factory=dict, init=False)

    def record(self, call: ModelCall) -> None:
        """Keep one call, within the bounds."""
        rollout = self._rollouts.get(call.rollout_key)
        if rollout is None:
            if len(self._rollouts) >= self.max_rollouts:
                self.calls_of_refused_rollouts += 1
                return
            rollout = self._rollouts[call.rollout_key] = _RolloutCalls()
        if len(rollout.calls) >= self.max_calls:
            rollout.not_recorded += 1
            return
        request, request_bytes = self._bounded(call.request, rollout.held_bytes)
        response, response_bytes = self._bounded(call.response, rollout.held_bytes + request_bytes)
        rollout.held_bytes += request_bytes + response_bytes
        kept = attrs.evolve(call, request=request, response=response)
        rollout.calls.append(kept)
        if self.observe is not None:
            self.observe(kept)

    def record_stray(self, path: str) -> None:
        """Note a call that carried no rollout prefix: it belongs to nobody."""
        self.stray_calls += 1
        if len(self._strays) < self.max_strays:
            self._strays.append(path[:200])

    @property
    def strays(self) -> tuple[str, ...]:
        """Paths of the first calls that carried no rollout prefix."""
        return tuple(self._strays)

    @property
    def rollout_keys(self) -> tuple[str, ...]:
        return tuple(self._rollouts)

    def calls(self, rollout_key: str) -> tuple[ModelCall, ...]:
        """The calls of a rollout in the order in which they ended."""
        rollout = self._rollouts.get(rollout_key)
        return () if rollout is None else tuple(rollout.calls)

    def not_recorded(self, rollout_key: str) -> int:
        """How many calls of a rollout were left out because there were too many."""
        rollout = self._rollouts.get(rollout_key)
        return 0 if rollout is None else rollout.not_recorded

    def discard(self, rollout_key: str) -> None:
        """Forget a rollout."""
        self._rollouts.pop(rollout_key, None)

    def export_jsonl(self, path: str | Path, rollout_key: str | None = None) -> int:
        """Write records as JSON lines, atomically; of one rollout, or of all.

        A rollout with calls that were left out ends with ``{"rollout_key", "not_recorded"}``.

        Returns:
            The number of calls written.
        """
        target = Path(path)
        written = 0
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as lines:
                for key in self.rollout_keys if rollout_key is None else (rollout_key,):
                    for call in self.calls(key):
                        lines.write(json.dumps(attrs.asdict(call)) + "\n")
                        written += 1
                    if self.not_recorded(key):
                        left_out = {"rollout_key": key, "not_recorded": self.not_recorded(key)}
                        lines.write(json.dumps(left_out) + "\n")
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
        return written

    def _bounded(self, value: Any, held_bytes: int) -> tuple[Any, int]:
        if value is None:
            return None, 0
        text = json.dumps(value)
        room = min(self.max_body_bytes, self.max_rollout_bytes - held_bytes)
        if len(text) <= room:
            return value, len(text)
        head = text[: max(0, min(room, self.max_body_bytes) // 2)]
        return {"truncated": True, "size_bytes": len(text), "head": head}, len(head)
