"""The gate before the host's shared runtime: of calls that come at once, one installs and the others wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from attrs import define, field

from inspan_core.errors import InstallError, UnsupportedTarget
from inspan_runtime.harness_work import HarnessWork
from inspan_runtime.room import Room


@define(eq=False)
class _Attempt:
    over: anyio.Event = field(factory=anyio.Event)
    error: Exception | None = None


@define(eq=False)
class InstallGate:
    """Lets one installation through until one has succeeded; from then on each call checks for itself.

    Those who wait share a failure; who comes after it tries again.
    """

    _is_ready: bool = field(default=False, init=False)
    _attempt: _Attempt | None = field(default=None, init=False)

    async def through(self, install: Callable[[], Awaitable[None]]) -> None:
        """Run `install`, alone as long as nothing is installed.

        Raises:
            InstallError: The attempt that was waited for failed.
            UnsupportedTarget: Likewise, and no attempt can succeed.
        """
        while not self._is_ready and self._attempt is not None:
            attempt = self._attempt
            await attempt.over.wait()
            if attempt.error is not None:
                kind = UnsupportedTarget if isinstance(attempt.error, UnsupportedTarget) else InstallError
                raise kind(f"the installation that was under way failed: {attempt.error}") from attempt.error
        if self._is_ready:
            await install()
            return
        mine = self._attempt = _Attempt()
        try:
            await install()
            self._is_ready = True
        except Exception as error:
            mine.error = error
            raise
        finally:
            # Also when it was cut off: then one of those who wait is the next to try.
            self._attempt = None
            mine.over.set()


@define(kw_only=True)
class HostWork(HarnessWork):
    """A session's steps on the host: the runtime is shared by all calls."""

    gate: InstallGate

    async def install(self, room: Room) -> None:
        """Let the plugin make its runtime ready, behind the gate."""
        await self.gate.through(lambda: HarnessWork.install(self, room))
