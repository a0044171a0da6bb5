"""The model server behind the gateway: how to reach it, and what is kept of it for each rollout."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Literal

from attrs import define, field, frozen

from inspan_core.errors import ConfigError

COOKIES_OF_A_ROLLOUT = 20
COOKIE_LIMIT_CHARS = 4096
MAX_ROLLOUTS = 10_000
# Of one connection only, or the gateway's own business.
HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer",
        "transfer-encoding", "upgrade", "content-length", "set-cookie", "date", "server",
    }
)  # fmt: skip
# What describes a call's body; everything else that a harness sends stays between it and the gateway.
PASSED_ON = ("content-type", "accept", "user-agent")


@frozen(kw_only=True)
class Upstream:
    """An OpenAI-compatible model server.

    Attributes:
        base_url: Ends with the version, for example ``"http://127.0.0.1:8000/v1"``.
        key: Its API key, or None. Never recorded, and never seen by a sandbox.
        api: ``"both"``, or ``"chat_completions"`` where it has only that: Responses calls are converted.
        connect_timeout_s: Seconds for a connection.
        silence_timeout_s: Seconds without any byte of an answer.
        max_connections: Calls at once; more wait.
    """

    base_url: str
    key: str | None = field(default=None, repr=False)
    api: Literal["both", "chat_completions"] = "both"
    connect_timeout_s: float = 10.0
    silence_timeout_s: float = 3600.0
    max_connections: int = 1000

    def __attrs_post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"upstream base_url is {self.base_url!r}, expected an http or https URL")
        if self.api not in ("both", "chat_completions"):
            raise ConfigError(f"upstream api is {self.api!r}, expected 'both' or 'chat_completions'")

    def url(self, path: str) -> str:
        """The address of a route, for example ``/chat/completions``."""
        return self.base_url.rstrip("/") + path

    def headers(self, received: Mapping[str, str], cookie: str | None) -> dict[str, str]:
        """The headers of a call that is passed on: the rollout's own key is not among them."""
        headers = {name: received[name] for name in PASSED_ON if name in received}
        headers["accept-encoding"] = "identity"
        if self.key is not None:
            headers["authorization"] = f"Bearer {self.key}"
        if cookie is not None:
            headers["cookie"] = cookie
        return headers


@define
class CookieJars:
    """The upstream's cookies, a jar for each rollout: a rollout's calls then reach one backend.

    All of them go back to the one server that set them, so domain and path do not matter. Bounded: the
    rollout that was silent longest is forgotten first, and within a jar the oldest cookie.
    """

    max_rollouts: int = MAX_ROLLOUTS
    _jars: OrderedDict[str, dict[str, str]] = field(factory=OrderedDict, repr=False)

    def header(self, rollout_key: str) -> str | None:
        """The ``Cookie`` header of the rollout's next call, or None."""
        jar = self._jars.get(rollout_key)
        if not jar:
            return None
        self._jars.move_to_end(rollout_key)
        return "; ".join(f"{name}={value}" for name, value in jar.items())

    def take(self, rollout_key: str, set_cookies: Iterable[str]) -> None:
        """Keep what ``Set-Cookie`` headers say; a cookie that is over is dropped."""
        for text in set_cookies:
            pair, *attributes = text.split(";")
            name, separator, value = (part.strip() for part in pair.partition("="))
            if not separator or not name or len(pair) > COOKIE_LIMIT_CHARS:
                continue
            jar = self._jars.setdefault(rollout_key, {})
            self._jars.move_to_end(rollout_key)
            jar.pop(name, None)
            if not _is_over(attributes):
                jar[name] = value
            while len(jar) > COOKIES_OF_A_ROLLOUT:
                jar.pop(next(iter(jar)))
        while len(self._jars) > self.max_rollouts:
            self._jars.popitem(last=False)


def _is_over(attributes: Iterable[str]) -> bool:
    given = {}
    for attribute in attributes:
        name, _, value = attribute.partition("=")
        given[name.strip().lower()] = value.strip()
    if "max-age" in given:
        # It wins over `expires`; what is not a number is ignored, as browsers do.
        try:
            return int(given["max-age"]) <= 0
        except ValueError:
            pass
    if "expires" in given:
        try:
            return parsedate_to_datetime(given["expires"]).timestamp() <= time.time()
        except (ValueError, OverflowError, TypeError):
            return False
    return False
