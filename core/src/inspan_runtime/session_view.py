"""What an operator is shown of a session: no contents, no secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inspan_core.session import Session


def view(session: Session, *, episode: Mapping[str, Any], sandbox_id: str | None) -> dict[str, Any]:
    """A JSON object.

    Args:
        episode: The episode's id.
        sandbox_id: The provider's name for the sandbox, or None.
    """
    run = session.run
    errors = [error.detail for error in (session.setup_error, run.execution_error) if error is not None] + [
        detail for detail in (run.capture_error, run.evidence_detail) if detail is not None
    ]
    return {
        "agent_session_id": session.name,
        "phase": session.phase.name,
        "run": run.phase.name,
        "episode_id": dict(episode),
        "sandbox": run.sandbox.value,
        "sandbox_id": sandbox_id,
        "owned": run.owned,
        "launched": run.launched,
        "evidence": run.evidence.value,
        "answer_status": None if session.answer is None else session.answer.status,
        "close_status": None if session.close_answer is None else session.close_answer.status,
        "failed_closes": session.failures,
        "gradable": session.gradable,
        "errors": errors,
    }
