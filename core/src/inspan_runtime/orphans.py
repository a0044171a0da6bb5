"""Sandboxes that nobody knows: a provider completed their creation after the server that ordered it had died.

Each sandbox of ours carries the server's label and that of the process that ordered it. One by an earlier
process that no session knows is stopped; one by this process never is, since its session may not know it yet.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable

import anyio
from attrs import evolve, field, frozen

from inspan_core.errors import SandboxError, SandboxGone
from inspan_core.sandbox import Descriptor, SandboxProvider
from inspan_runtime.harness_work import OwnedSandbox

SERVER_LABEL = "inspan.server"
PROCESS_LABEL = "inspan.process"
CALL_TIMEOUT_S = 30.0
PAUSES_S = (1.0, 5.0, 15.0, 60.0, 180.0, 600.0)
"""A create takes ten minutes at most; what comes later than all of these ends by its time to live."""

log = logging.getLogger(__name__)


@frozen(kw_only=True)
class Ownership:
    """Who orders sandboxes here.

    Attributes:
        server: The same for each process that uses one state folder.
        process: This one's.
    """

    server: str
    process: str = field(factory=lambda: uuid.uuid4().hex)

    def marked(self, owned: OwnedSandbox) -> OwnedSandbox:
        """The same sandbox with our labels."""
        labels = {**owned.spec.labels, SERVER_LABEL: self.server, PROCESS_LABEL: self.process}
        return evolve(owned, spec=evolve(owned.spec, labels=labels))


async def reap_orphans(
    ownership: Ownership,
    make_provider: Callable[[], SandboxProvider],
    is_known: Callable[[str], bool],
    first_done: Callable[[], None],
    *,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> None:
    """Look for orphans at once, and again until no create of a dead process can be under way.

    Args:
        make_provider: Makes a client of the provider of our own sandboxes.
        is_known: Whether a session knows the sandbox by that id.
        first_done: Called when the first look is over, whatever came of it.
    """
    for pause_s in PAUSES_S:
        try:
            with anyio.move_on_after(CALL_TIMEOUT_S):
                await _reap(ownership, make_provider(), is_known)
        except SandboxError as error:
            log.warning("sandboxes that nobody knows could not be looked for: %s", error)
        first_done()
        await sleep(pause_s)


async def _reap(ownership: Ownership, provider: SandboxProvider, is_known: Callable[[str], bool]) -> None:
    try:
        ours = {SERVER_LABEL: ownership.server}
        found = await provider.list(ours)
        # Asked for afterwards: what this process has created meanwhile must not look like nobody's.
        living = {_id(each) for each in await provider.list({**ours, PROCESS_LABEL: ownership.process})}
        for descriptor in found:
            sandbox_id = _id(descriptor)
            if sandbox_id in living or is_known(sandbox_id):
                continue
            try:
                await (await provider.connect(descriptor, timeout_s=CALL_TIMEOUT_S)).stop()
                log.warning(
                    "stopped sandbox %s, which a dead server had ordered and nobody knows", sandbox_id
                )
            except SandboxGone:
                continue
    finally:
        with anyio.move_on_after(CALL_TIMEOUT_S, shield=True):
            await provider.aclose()


def _id(descriptor: Descriptor) -> str:
    return str(descriptor.get("sandbox_id"))
