"""The outcome of the demonstration as one JSON object, put together from what each server knows."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import attrs
from attrs import frozen

from inspan_core.harness import HarnessSpec
from inspan_core.sandbox import Sandbox
from inspan_runtime.service import SessionEvidence
from inspan_server.cli.timeline import Timeline
from inspan_server.environment.task import Task
from inspan_server.model.capture import Capture, ModelCall

# In the names of Chat Completions, and what Responses calls them.
USAGE_KEYS = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "total_tokens": "total_tokens",
}


@frozen(kw_only=True)
class DemoResult:
    """What the demonstration found.

    Attributes:
        is_healthy: Everything that a grade rests on is there: a confirmed receipt, a good close, and
            nothing left over by the clean-up.
        value: The object of ``--json``.
    """

    is_healthy: bool
    value: dict[str, Any]

    @property
    def reward(self) -> float | None:
        reward: float | None = self.value["reward"]
        return reward

    @property
    def failed_at_seed(self) -> bool:
        """Whether no harness was started at all: the machine lacks something."""
        failure = self.value["failure"]
        return failure is not None and failure["stage"] == "seed"


def put_together(
    *,
    harness: HarnessSpec,
    task: Task,
    provider: str,
    sandbox: Sandbox | None,
    answer: Mapping[str, Any],
    evidence: SessionEvidence | None,
    capture: Capture,
    rollout_key: str,
    timeline: Timeline,
) -> DemoResult:
    """Join the Environment Server's answer with the Agent Server's evidence and the gateway's records."""
    result = answer.get("result") or {}
    failure = answer.get("failure")
    response = result.get("response") or (failure or {}).get("partial_response")
    receipt = None if evidence is None or evidence.receipt is None else attrs.asdict(evidence.receipt)
    processes = None if evidence is None or evidence.processes is None else evidence.processes.to_json()
    calls = capture.calls(rollout_key)
    is_healthy = (
        failure is None
        and evidence is not None
        and evidence.gradable
        and receipt is not None
        and receipt["cleanup_confirmed"] is True
        and not result.get("cleanup_failures")
    )
    value = {
        "reward": result.get("reward"),
        "outcome": "failed" if failure is not None else (response or {}).get("status", "unknown"),
        "healthy": is_healthy,
        "failure": failure,
        "task": {"task_id": task.task_id.task_id, "instruction": task.instruction},
        "rollout_key": rollout_key,
        "receipt": receipt,
        "processes": processes,
        "verification": result.get("verification"),
        "cleanup_failures": result.get("cleanup_failures", []),
        "response": response,
        "agent_observations": result.get("agent_observations"),
        "model_calls": [attrs.asdict(call) for call in calls],
        "model_calls_elsewhere": {
            "without_rollout": list(capture.strays),
            "unauthorized": capture.unauthorized_calls,
        },
        "usage": total_usage(calls),
        "timeline": [attrs.asdict(entry) for entry in timeline.entries],
        "elapsed_ms": timeline.elapsed_ms,
        "sandbox": {
            "provider": provider,
            "sandbox_id": None if sandbox is None else sandbox.sandbox_id,
            "descriptor": None if sandbox is None else dict(sandbox.descriptor),
        },
        "versions": versions(harness),
    }
    return DemoResult(is_healthy=is_healthy, value=value)


def total_usage(calls: tuple[ModelCall, ...]) -> dict[str, int | None]:
    """Tokens by the gateway's count; None when any answer of the model came without."""
    answered = [call for call in calls if call.outcome == "answered" and not call.route.endswith("/models")]
    if not answered or any(call.usage is None for call in answered):
        return dict.fromkeys(USAGE_KEYS)
    return {
        key: sum((call.usage or {}).get(key, (call.usage or {}).get(other, 0)) for call in answered)
        for key, other in USAGE_KEYS.items()
    }


def versions(harness: HarnessSpec) -> dict[str, Any]:
    """What ran, for whoever reads the record later."""
    return {
        "inspan": metadata.version("inspan-server"),
        "harness": {"name": harness.name, "version": harness.version},
        "python": sys.version.split()[0],
        "platform": platform.platform(),
    }
