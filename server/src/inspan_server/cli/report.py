"""How the demonstration looks in a terminal: a line for each phase as it ends, and a summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inspan_server.cli.timeline import Entry
from inspan_server.model.capture import ModelCall

LABEL = 14
WIDTH = 96


def phase_line(entry: Entry) -> str:
    """One phase that has ended: when, which, and how long it took."""
    failed = f"  FAILED: {_short(entry.failure)}" if entry.failure else ""
    ended_ms = entry.started_ms + entry.duration_ms
    return f"{ended_ms:>9,.0f} ms  {entry.phase:<28} {entry.duration_ms:>8,.1f} ms{failed}"


def waiting_line(at_ms: float, phase: str, for_s: float) -> str:
    """A phase that takes its time."""
    return f"{at_ms:>9,.0f} ms  {phase} ... ({for_s:.0f} s so far)"


def call_line(at_ms: float, number: int, call: ModelCall) -> str:
    """One call of the model, as the gateway answered it."""
    return f"{at_ms:>9,.0f} ms    model call {number}: {_said(call)}"


def _said(call: ModelCall) -> str:
    response = call.response if isinstance(call.response, dict) else {}
    if isinstance(response.get("output"), list):
        return _responded(response["output"])
    choices = response.get("choices")
    if not choices:
        return f"{call.route} answered {call.status}"
    message = choices[0]["message"]
    calls = [each["function"] for each in message.get("tool_calls", ())]
    if calls:
        return "; ".join(f"{each['name']} {_short(each['arguments'], 60)}" for each in calls)
    return f'"{_short(message.get("content") or "", 60)}"'


def _responded(output: list[Mapping[str, Any]]) -> str:
    """The same of a Responses answer."""
    calls = [item for item in output if item["type"] == "function_call"]
    if calls:
        return "; ".join(f"{call['name']} {_short(call['arguments'], 60)}" for call in calls)
    texts = [part.get("text", "") for item in output if item["type"] == "message" for part in item["content"]]
    return f'"{_short(" ".join(texts), 60)}"'


def summary(value: Mapping[str, Any]) -> str:
    """What came of it, a fact a line."""
    lines = [
        _line("receipt", _receipt(value["receipt"])),
        _line("processes", _processes(value["processes"])),
        _line("tool calls", _tool_calls(value["agent_observations"])),
        _line(
            "model calls",
            f"{len(value['model_calls'])} seen by the gateway; tokens: {_usage(value['usage'])}",
        ),
    ]
    gaps = (value["agent_observations"] or {}).get("gaps", ())
    lines += [_line("gap", f"{gap['code']}: {_short(gap['detail'])}") for gap in gaps]
    verification = value["verification"]
    if verification is not None:
        lines.append(_line("verification", f"exit code {verification['exit_code']}"))
    if value["failure"] is not None:
        failure = value["failure"]
        lines.append(_line("failure", f"at {failure['stage']}: {failure['failure_reason']}"))
    lines += [_line("clean-up", problem) for problem in value["cleanup_failures"]]
    lines.append(_line("verdict", _verdict(value)))
    lines.append(_line("records", value["run_dir"]))
    return "\n".join(lines)


def _line(label: str, text: str) -> str:
    return f"{label:<{LABEL}}{text}"


def _receipt(receipt: Mapping[str, Any] | None) -> str:
    if receipt is None:
        return "none"
    confirmed = "confirmed: the harness stopped" if receipt["cleanup_confirmed"] else "NEGATIVE"
    timed_out = ", at its deadline" if receipt["timed_out"] else ""
    return f"{confirmed}; return code {receipt['return_code']}{timed_out}"


def _processes(processes: Mapping[str, Any] | None) -> str:
    if processes is None:
        return "unknown"
    return ", ".join(f"{len(processes[key])} {key}" for key in ("killed", "preserved", "unfinished"))


def _tool_calls(observations: Mapping[str, Any] | None) -> str:
    records = (observations or {}).get("records", ())
    calls = [record for record in records if record["kind"] == "tool_call"]
    if not calls:
        return "none observed"
    return ", ".join(f"{call['tool_name']} {call['status']}{_took(call['duration_ms'])}" for call in calls)


def _took(duration_ms: float | None) -> str:
    return "" if duration_ms is None else f" ({duration_ms:,.0f} ms)"


def _usage(usage: Mapping[str, Any]) -> str:
    if usage["total_tokens"] is None:
        return "unknown"
    return f"{usage['prompt_tokens']:,} in, {usage['completion_tokens']:,} out"


def _verdict(value: Mapping[str, Any]) -> str:
    health = "healthy" if value["healthy"] else "not healthy"
    reward = "no reward: not graded" if value["reward"] is None else f"reward {value['reward']:g}"
    return f"{reward}; the episode was {health}; {value['outcome']}, {value['elapsed_ms'] / 1000:.2f} s"


def _short(text: str, width: int = WIDTH) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 3] + "..."
