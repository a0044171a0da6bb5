"""The signed session cookie: which session a client belongs to, and nothing else.

    inspan_agent_session=<base64url of the session id>.<HMAC-SHA256, hexadecimal>

All characters are token characters, so that a client that quotes other values has nothing to quote. A client
that belongs to no session gets the cookie of the empty id; so every answer can set the cookie, and a client
that replaces its jar by the cookies of an answer never loses it.
"""

from __future__ import annotations

import binascii
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable

from attrs import field, frozen

from inspan_core.findings import Cookie

COOKIE_NAME = "inspan_agent_session"
INVALID_VALUE = "invalid"
"""Sent back to a client whose cookie is not ours: it stays malformed until the client forgets it."""

_VALUE = re.compile(r"([A-Za-z0-9_-]*)\.([0-9a-f]{64})", re.ASCII)
_VALUE_LIMIT = 4096


@frozen(kw_only=True)
class Marker:
    """What a request's cookie says.

    Attributes:
        session_id: The session that it names, or None.
        is_malformed: Whether there is a cookie that we did not make.
        value: The cookie as it came, once it was checked: it goes back as it is.
    """

    session_id: str | None = None
    is_malformed: bool = False
    value: str | None = field(default=None, eq=False, repr=False)

    def finding(self, session_id: str) -> Cookie:
        """The cookie compared with the session that the request's body is about."""
        if self.is_malformed:
            return Cookie.MALFORMED
        if self.session_id is None:
            return Cookie.ABSENT
        return Cookie.SAME if self.session_id == session_id else Cookie.OTHER

    @property
    def own_finding(self) -> Cookie:
        """The cookie by itself, where it is what names the session."""
        return self.finding(self.session_id or "")


@frozen
class SessionCookies:
    """Makes and checks session cookies.

    Args:
        secret: At least 16 bytes; a cookie made with another secret is malformed.
    """

    _secret: bytes = field(repr=False)

    def set_header(self, marker: Marker) -> str:
        """The value of a ``Set-Cookie`` header that keeps the client where it is."""
        value = INVALID_VALUE if marker.is_malformed else marker.value or self.value(marker.session_id or "")
        return f"{COOKIE_NAME}={value}; Path=/; HttpOnly; SameSite=Lax"

    def value(self, session_id: str) -> str:
        """The cookie's value for a session; the empty id stands for none."""
        name = urlsafe_b64encode(session_id.encode("utf-8", "surrogatepass")).decode().rstrip("=")
        return f"{name}.{self._signature(name)}"

    def read(self, cookie_headers: Iterable[str]) -> Marker:
        """What the ``Cookie`` headers of a request say; quoted values are taken too."""
        values = {value for header in cookie_headers for value in _given(header)}
        if not values:
            return Marker()
        if len(values) > 1:
            return Marker(is_malformed=True)
        return self._checked(values.pop())

    def _checked(self, value: str) -> Marker:
        match = _VALUE.fullmatch(value) if len(value) <= _VALUE_LIMIT else None
        if match is None or not hmac.compare_digest(match[2], self._signature(match[1])):
            return Marker(is_malformed=True)
        name = match[1]
        try:
            session_id = urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode("utf-8", "surrogatepass")
        except (binascii.Error, UnicodeDecodeError):
            return Marker(is_malformed=True)
        return Marker(session_id=session_id or None, value=value)

    def _signature(self, name: str) -> str:
        return hmac.digest(self._secret, b"agent-session:" + name.encode(), "sha256").hex()


def _given(header: str) -> list[str]:
    parts = [part.partition("=") for part in header.split(";")]
    return [
        value.strip().strip('"') for name, equals, value in parts if equals and name.strip() == COOKIE_NAME
    ]
