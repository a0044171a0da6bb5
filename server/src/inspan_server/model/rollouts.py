"""What the gateway remembers of a rollout between its calls."""

from __future__ import annotations

import secrets

from attrs import define, field

COOKIE = "inspan_rollout"


@define
class Rollout:
    """One rollout.

    Attributes:
        cookie: The value of the cookie that the gateway sets.
        calls: Calls that came in, of any route.
        replies_taken: Replies of the script that were used up.
    """

    key: str
    cookie: str = field(factory=lambda: secrets.token_hex(16), repr=False)
    calls: int = 0
    replies_taken: int = 0
    last_was_good: bool = True
    _last_body: bytes = field(default=b"", repr=False)
    _attempt: int = 0

    def next_attempt(self, raw: bytes) -> int:
        """Which attempt this body is: 1 unless the same came before and its answer was not good."""
        repeated = raw == self._last_body and not self.last_was_good
        self._attempt = self._attempt + 1 if repeated else 1
        self._last_body = raw
        self.last_was_good = False
        return self._attempt

    def cookie_header(self) -> dict[str, str]:
        """The header that sets the rollout's cookie."""
        return {"set-cookie": f"{COOKIE}={self.cookie}; Path=/ng-rollout/{self.key}; HttpOnly"}
