"""The ways from one session's sandbox to its model server and its tool servers on this host."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import anyio
from attrs import define, evolve, field

from inspan_core.errors import InspanError, ReachUnavailable, SandboxError, SandboxGone
from inspan_core.sandbox import Reached, Sandbox, is_reaching
from inspan_core.wire import McpAccess, ToolAccess
from inspan_runtime.grant_reach import UNREACHED, grant_url, loopback_url

_logger = logging.getLogger(__name__)
HOST_TRY_S = 5.0
CLOSE_LIMIT_S = 5.0


class ModelUnreachable(InspanError):
    """The model server answers nobody, or too late, or that it cannot: it may do so later (503)."""


@define(kw_only=True)
class SessionReach:
    """What one session has open, by server; each server once.

    Attributes:
        opened: By its URL without path, the way to a server of this host's loopback; None: it needs none.
    """

    opened: dict[str, Reached | None] = field(factory=dict)

    async def open(
        self, sandbox: Sandbox, model_url: str | None, grants: Iterable[ToolAccess], *, holder: str
    ) -> None:
        """Open what is not open yet.

        Args:
            holder: The session's name in the sandbox: a restarted server takes over by it what it held.

        Raises:
            ReachUnavailable: The provider can open no way to the model or to a grant that is required.
            SandboxError: The sandbox failed.
        """
        if not is_reaching(sandbox):
            return
        wanted = [] if model_url is None else [(model_url, True)]
        wanted += [(grant_url(grant), grant.required) for grant in grants]
        for url, is_required in wanted:
            for server in loopback_url(url):
                if server in self.opened:
                    continue
                try:
                    self.opened[server] = await sandbox.reach(server, holder=holder)
                except ReachUnavailable:
                    if is_required:
                        raise  # An optional one is found unreachable when it is tried.

    async def open_again(
        self, sandbox: Sandbox, model_url: str | None, grants: Sequence[ToolAccess], *, holder: str
    ) -> None:
        """Take over what this session held before the server was restarted; what fails is tried later."""
        try:
            await self.open(sandbox, model_url, grants, holder=holder)
        except SandboxGone:
            raise
        except SandboxError as error:
            _logger.warning("a session's way could not be opened again: %s", error)

    def inside(self, url: str) -> str:
        """The URL as it is used in the sandbox."""
        if not self.opened:
            return url
        for server in loopback_url(url):
            way = self.opened.get(server)
            if way is not None and way.url != server:
                user, at, _ = urlsplit(url).netloc.rpartition("@")
                return urlsplit(url)._replace(netloc=f"{user}{at}{urlsplit(way.url).netloc}").geturl()
        return url

    def inside_grants(self, grants: Iterable[ToolAccess]) -> tuple[ToolAccess, ...]:
        """The grants with the URLs that are used in the sandbox."""
        return tuple(self._inside_grant(grant) for grant in grants)

    def _inside_grant(self, grant: ToolAccess) -> ToolAccess:
        url = self.inside(grant_url(grant))
        if url == grant_url(grant):
            return grant
        if isinstance(grant, McpAccess):
            return evolve(grant, connection=evolve(grant.connection, url=url))
        return evolve(grant, base_url=url)

    def tried_url(self, sandbox: Sandbox, model_url: str) -> str | None:
        """Where the model server is to be tried inside; None where a sandbox has no network of its own."""
        can_reach = is_reaching(sandbox)
        if not can_reach or sandbox.descriptor.get("isolation") == "none":
            return None
        return self.inside(model_url)

    async def judge_model(self, model_url: str, problem: str | None) -> None:
        """Refuse a session whose sandbox does not reach the model server.

        Args:
            problem: What was found when it was tried from inside, or None.

        Raises:
            ModelUnreachable: It is down or hangs.
            ReachUnavailable: This process reaches it, and the sandbox does not.
        """
        if problem is None:
            return
        # What answers badly, or not in time, was reached.
        is_cut_off = problem.startswith(UNREACHED) and "timed out" not in problem
        if is_cut_off and await _is_reached_here(model_url):
            raise ReachUnavailable(f"the model server {model_url}: {problem}")
        raise ModelUnreachable(f"the model server {model_url} cannot be used: {problem}")

    async def close(self) -> None:
        """Close all; what cannot be closed ends by itself."""
        opened, self.opened = self.opened, {}
        for way in opened.values():
            if way is not None:
                with anyio.move_on_after(CLOSE_LIMIT_S), suppress(SandboxError):
                    await way.close()


async def _is_reached_here(url: str) -> bool:
    """Whether somebody listens at a URL, seen from this process."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with anyio.fail_after(HOST_TRY_S):
            stream = await anyio.connect_tcp(parts.hostname or "", port)
    except (OSError, TimeoutError):
        return False
    await stream.aclose()
    return True
