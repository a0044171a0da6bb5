"""Checks of lives and boundaries can fail: each of these providers has one defect, and its check finds it."""

import secrets
from types import SimpleNamespace

import anyio
import anyio.lowlevel
import pytest
from attrs import evolve

from inspan_core.errors import (
    SandboxConnectError,
    SandboxError,
    SandboxGone,
)
from inspan_core.sandbox import ExecResult, ResourceUsage
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.testing import sandbox_checks
from inspan_runtime.testing.sandbox_boundary_checks import BOUNDARY_CHECKS
from inspan_runtime.testing.sandbox_life_checks import LIFE_CHECKS
from inspan_runtime.testing.sandbox_wrappers import WrappedProvider, WrappedSandbox, of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class StopsOnDisconnect(WrappedSandbox):
    async def disconnect(self):
        await self.inner.stop()


class StopsOnce(WrappedSandbox):
    stopped = False

    async def stop(self):
        if self.stopped:
            raise SandboxGone("stopped already")
        self.stopped = True
        await self.inner.stop()


class GoneIsAnExitCode(WrappedSandbox):
    async def exec(self, argv, **options):
        try:
            return await self.inner.exec(argv, **options)
        except SandboxGone:
            return ExecResult(exit_code=137)


class ForgetsLabels(WrappedProvider):
    async def list(self, labels):
        return await self.inner.list({})


class ForgetsKeys(WrappedProvider):
    async def create(self, spec, *, key, timeout_s=60.0):
        self.made = [*getattr(self, "made", []), f"{key}-{secrets.token_hex(4)}"]
        return await self.inner.create(spec, key=self.made[-1], timeout_s=timeout_s)

    async def stop(self, key, *, timeout_s=30.0):
        for made in getattr(self, "made", []):
            if made.startswith(key):
                await self.inner.stop(made)


class ForgetsTimeToLive(WrappedProvider):
    async def create(self, spec, *, key, timeout_s=60.0):
        return await self.inner.create(evolve(spec, ttl_s=3600.0), key=key, timeout_s=timeout_s)


class TakesAnyDescriptor(WrappedProvider):
    async def connect(self, descriptor, *, timeout_s=30.0):
        try:
            return await self.inner.connect(descriptor, timeout_s=timeout_s)
        except SandboxConnectError:
            return object()


class TakesAnyWorkdir(WrappedProvider):
    async def create(self, spec, *, key, timeout_s=60.0):
        if not spec.workdir.startswith("/"):
            spec = evolve(spec, workdir="/tmp")
        return await self.inner.create(spec, key=key, timeout_s=timeout_s)


class IgnoresMounts(WrappedProvider):
    async def create(self, spec, *, key, timeout_s=60.0):
        return await self.inner.create(evolve(spec, mounts=()), key=key, timeout_s=timeout_s)


class CreatesBehindTheBack(WrappedProvider):
    """A cancelled create goes on."""

    async def create(self, spec, *, key, timeout_s=60.0):
        with anyio.CancelScope(shield=True):
            made = await self.inner.create(spec, key=key, timeout_s=timeout_s)
        await anyio.lowlevel.checkpoint()
        return made


class NoDescriptor(WrappedSandbox):
    @property
    def descriptor(self):
        return {**self.inner.descriptor, "self": self}


class StopsOnceAtATime(WrappedSandbox):
    is_stopping = False

    async def stop(self):
        if self.is_stopping:
            raise SandboxError("it is being stopped")
        self.is_stopping = True
        await self.inner.stop()


class TellsVariables(WrappedSandbox):
    @property
    def descriptor(self):
        return {**self.inner.descriptor, "env": self.env}


class NoUsage(WrappedSandbox):
    async def usage(self):
        return ResourceUsage(cpu_time_s=0.0, peak_memory_mib=0.0, source="guess")


class ShowsVariables(WrappedProvider):
    async def create(self, spec, *, key, timeout_s=60.0):
        made = TellsVariables(await self.inner.create(spec, key=key, timeout_s=timeout_s))
        made.env = dict(spec.env)
        return made


class MissingKeyIsAnError(WrappedProvider):
    async def stop(self, key, *, timeout_s=30.0):
        if not await self.inner.list({}):
            raise SandboxGone("no such sandbox")
        await self.inner.stop(key)


class OldOneForAKey(WrappedProvider):
    """A key's sandbox is never made twice."""

    async def create(self, spec, *, key, timeout_s=60.0):
        self.made = getattr(self, "made", {})
        if key not in self.made:
            self.made[key] = await self.inner.create(spec, key=key, timeout_s=timeout_s)
        return self.made[key]


class BurnsItsKeys(WrappedProvider):
    async def create(self, spec, *, key, timeout_s=60.0):
        self.tried = getattr(self, "tried", set())
        if key in self.tried:
            raise SandboxError(f"{key} was tried already")
        self.tried.add(key)
        return await self.inner.create(spec, key=key, timeout_s=timeout_s)


class ForgetsOptions(WrappedProvider):
    options = {}  # noqa: RUF012  # read only


def without(**change):
    """A provider that drops a part of the specification, whatever it declares."""

    class Dropping(WrappedProvider):
        capabilities = frozenset(sandbox_checks.CAPABILITIES)

        async def create(self, spec, *, key, timeout_s=60.0):
            return await self.inner.create(evolve(spec, **change), key=key, timeout_s=timeout_s)

    return Dropping


class OpensAll(WrappedProvider):
    """One declared server opens the way to all."""

    async def create(self, spec, *, key, timeout_s=60.0):
        urls = tuple(f"http://127.0.0.1:{port}" for port in _listening())
        return await self.inner.create(evolve(spec, reach=urls), key=key, timeout_s=timeout_s)


def _listening():
    with open("/proc/net/tcp", encoding="ascii") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return sorted({int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A"})


class OpensAllLater(WrappedSandbox):
    """One URL that is asked for opens the way to its neighbours."""

    async def reach(self, url, *, holder, timeout_s=30.0):
        urls = [url, *(f"http://127.0.0.1:{port}" for port in _listening())]
        ways = [way for one in urls if (way := await self.inner.reach(one, holder=holder))]

        async def close():
            for way in ways:
                await way.close()

        return SimpleNamespace(url=ways[0].url, close=close)


class HangsUp(WrappedSandbox):
    """A way whose holder only goes away, as one that was killed."""

    async def reach(self, url, *, holder, timeout_s=30.0):
        way = await self.inner.reach(url, holder=holder)

        async def close():
            way._hang_up()

        return SimpleNamespace(url=way.url, close=close)


class TellsAnotherUrl(WrappedSandbox):
    """A declared URL is not reused: it gets a way of its own."""

    async def reach(self, url, *, holder, timeout_s=30.0):
        other = url.replace("127.0.0.1", "127.0.0.2")
        way = await self.inner.reach(other, holder=holder)
        return way and SimpleNamespace(url=other, close=way.close)


class WritableMounts(WrappedProvider):
    async def create(self, spec, *, key, timeout_s=60.0):
        mounts = tuple(evolve(one, read_only=False) for one in spec.mounts)
        return await self.inner.create(evolve(spec, mounts=mounts), key=key, timeout_s=timeout_s)


class IgnoresWhatItCannotKeep(WrappedProvider):
    async def create(self, spec, *, key, timeout_s=60.0):
        spec = evolve(spec, mounts=(), cpu=None, memory_mib=None, pids=None)
        return await self.inner.create(spec, key=key, timeout_s=timeout_s)


DEFECTS = {
    "foreign_descriptor_is_refused": TakesAnyDescriptor,
    "disconnect_leaves_it_alive": of(StopsOnDisconnect),
    "one_key_is_one_sandbox": ForgetsKeys,
    "racing_creates_of_a_key_are_one": ForgetsKeys,
    "list_finds_by_all_labels": ForgetsLabels,
    "stop_ends_it_for_everybody": of(StopsOnce),
    "stop_interrupts_a_running_command": of(GoneIsAnExitCode),
    "time_to_live_ends_it": ForgetsTimeToLive,
    "unfit_specification_is_refused": TakesAnyWorkdir,
    "impossible_mount_is_a_conflict": IgnoresMounts,
    "cancelled_create_leaves_nothing": CreatesBehindTheBack,
    "descriptor_is_json_and_enough": of(NoDescriptor),
    "key_of_a_stopped_sandbox_is_free": OldOneForAKey,
    "stop_by_key_needs_no_sandbox": MissingKeyIsAnError,
    "another_process_reaches_it": ForgetsOptions,
    "racing_stops_all_succeed": of(StopsOnceAtATime),
    "descriptor_holds_no_secret": ShowsVariables,
    "failed_create_can_be_repeated": BurnsItsKeys,
    "hosts_files_are_not_there": without(),
    "hosts_processes_are_not_there": without(),
    "hosts_network_is_not_there": without(),
    "declared_url_is_reached": without(reach=()),
    "only_declared_urls_are_reached": OpensAll,
    "url_is_reached_later": of(OpensAllLater),
    "closed_way_is_closed": of(HangsUp),
    "declared_url_stays_reached": of(TellsAnotherUrl),
    "mounts_are_shown": WritableMounts,
    "memory_limit_is_kept_and_told": without(memory_mib=None),
    "process_limit_is_kept": without(pids=None),
    "usage_is_told": of(NoUsage),
    "what_cannot_be_kept_is_refused": IgnoresWhatItCannotKeep,
}
OF_BUBBLEWRAP = {
    "declared_url_is_reached",
    "only_declared_urls_are_reached",
    "url_is_reached_later",
    "closed_way_is_closed",
    "declared_url_stays_reached",
    "mounts_are_shown",
    "memory_limit_is_kept_and_told",
    "process_limit_is_kept",
}
"""Only where there is a boundary can it have a hole."""


def test_every_check_has_a_defect():
    names = {check.__name__ for check in (*LIFE_CHECKS, *BOUNDARY_CHECKS)}
    assert set(DEFECTS) == names


@pytest.mark.parametrize("name", DEFECTS)
async def test_check_finds_its_defect(name, find_defect):
    if name in OF_BUBBLEWRAP:
        await find_defect(name, DEFECTS[name], BubblewrapProvider, "/task")
    else:
        await find_defect(name, DEFECTS[name], LocalProvider)
