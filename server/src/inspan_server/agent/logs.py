"""Structured logs: a JSON object or text a line, with the session's id and without the server's secrets."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal, TextIO

from inspan_core.effects import Effect
from inspan_core.events import Event
from inspan_core.session import Evidence, Phase, Session

LogFormat = Literal["text", "json"]
REDACTED = "[redacted]"
MESSAGE_LIMIT = 8000
TROUBLE = frozenset({Phase.SETUP_FAILED, Phase.CLOSE_FAILED})
log = logging.getLogger("inspan.sessions")


def set_up_logging(
    form: LogFormat, *, level: str = "INFO", secrets: Iterable[str] = (), stream: TextIO | None = None
) -> None:
    """Let all loggers of the process write to one stream, by default stderr.

    Args:
        secrets: Texts that are never written: the server's own tokens and keys.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_Lines(form, tuple(sorted(filter(None, secrets), key=len, reverse=True))))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)


class _Lines(logging.Formatter):
    def __init__(self, form: LogFormat, secrets: tuple[str, ...]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._form, self._secrets = form, secrets

    def format(self, record: logging.LogRecord) -> str:
        session = getattr(record, "session", None)
        if self._form == "text":
            text = super().format(record) + ("" if session is None else f" session={session}")
            return self._clean(text)
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": self._clean(record.getMessage())[:MESSAGE_LIMIT],
        }
        if session is not None:
            line["session"] = str(session)
        if record.exc_info:
            line["traceback"] = self._clean(self.formatException(record.exc_info))[:MESSAGE_LIMIT]
        return json.dumps(line)

    def _clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return text


def follow_sessions(before: Session, event: Event, after: Session, effects: tuple[Effect, ...]) -> None:
    """Tell of a session's way: each phase at DEBUG, trouble at WARNING."""
    if after.run.evidence is Evidence.NEGATIVE and before.run.evidence is not Evidence.NEGATIVE:
        log.warning(
            "the harness was not proven stopped: %s", after.run.evidence_detail, extra={"session": after.name}
        )
    if after.phase is before.phase:
        return
    level = logging.WARNING if after.phase in TROUBLE else logging.DEBUG
    if log.isEnabledFor(level):
        reason = getattr(event, "detail", None) or getattr(event, "error", None)
        log.log(
            level,
            "%s -> %s after %s%s",
            before.phase.name,
            after.phase.name,
            type(event).__name__,
            f": {reason}" if reason else "",
            extra={"session": after.name},
        )
