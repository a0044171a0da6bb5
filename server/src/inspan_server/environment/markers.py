"""The Resources Server's session cookie: the session's id and a code that only this server can make."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from attrs import field, frozen

COOKIE = "inspan_resources"
# What a cookie may carry without being quoted.
SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,199}")


@frozen
class Markers:
    """Makes and checks session cookies."""

    key: bytes = field(factory=lambda: secrets.token_bytes(32), repr=False)

    def header(self, session_id: str) -> dict[str, str]:
        """The header that sets the cookie."""
        value = f"{session_id}.{self._code(session_id)}"
        return {"set-cookie": f"{COOKIE}={value}; Path=/; HttpOnly; SameSite=lax"}

    def session_id(self, cookie: str | None) -> str | None:
        """The session that a cookie names, or None when there is no cookie or it is not ours."""
        session_id, _, code = (cookie or "").strip('"').rpartition(".")
        if not SESSION_ID.fullmatch(session_id) or not code.isascii():
            return None
        return session_id if hmac.compare_digest(code, self._code(session_id)) else None

    def _code(self, session_id: str) -> str:
        return hmac.new(self.key, session_id.encode(), hashlib.sha256).hexdigest()
