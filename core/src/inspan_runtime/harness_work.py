"""The steps of an Agent Server's session: the plugin's hooks, and sandboxes from configured providers."""

from __future__ import annotations

import json
import logging
import posixpath
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
from attrs import define, evolve, field, frozen

from inspan_core.errors import InspanError, RequestRefused, SandboxError, SandboxGone, UnsupportedTarget
from inspan_core.findings import CollectResult, Outcome
from inspan_core.harness import Artifacts, ParsedActivation, ParseInput, SandboxCommand
from inspan_core.observations import ObservationGap
from inspan_core.relay import Harness
from inspan_core.sandbox import (
    Descriptor,
    ResourceUsage,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    is_metered,
)
from inspan_core.wire import SeedRequest, ToolAccess
from inspan_runtime.contexts import ArtifactContext, RunContext, SessionContext, is_transport_error
from inspan_runtime.grant_reach import ask_servers, judge_grants, loopback_urls, url_problem
from inspan_runtime.install import DEFAULT_LEASE_S, SandboxInstaller
from inspan_runtime.install_cache import RuntimeCache
from inspan_runtime.install_shared import create_with_runtimes
from inspan_runtime.jar import take_jar
from inspan_runtime.packing import pack_artifacts, pack_grants, pack_parsed
from inspan_runtime.parser_threads import ParserThreads
from inspan_runtime.preflight import Wanted, require
from inspan_runtime.redaction import redacted, redacted_text, secrets_of, without_secrets
from inspan_runtime.room import Room
from inspan_runtime.session_reach import SessionReach

_logger = logging.getLogger(__name__)
RECONNECT_TIMEOUT_S = 30.0
DROP_TIMEOUT_S = 5.0
USAGE_TIMEOUT_S = 5.0
PARSER_THREADS = ParserThreads()

ProviderFactory = Callable[[], SandboxProvider]
Parser = Callable[[ParseInput], ParsedActivation]
RunParser = Callable[[Parser, ParseInput], Awaitable[ParsedActivation]]
"""Runs a parser away from the event loop."""


async def in_worker_thread(parse: Parser, run: ParseInput) -> ParsedActivation:
    """Parse in a worker thread, which is left behind when the budget ends."""
    return await PARSER_THREADS.run(partial(parse, run))


@frozen(kw_only=True)
class OwnedSandbox:
    """What a session without a supplied sandbox gets.

    Attributes:
        provider: A name among the configured provider blocks.
        spec: What to create.
    """

    provider: str
    spec: SandboxSpec


@frozen(kw_only=True)
class Activation:
    """The bound activation's contents; its text shows neither prompt nor key."""

    request: Mapping[str, Any] = field(repr=False)
    model_base_url: str
    model_name: str
    model_key: str = field(repr=False)


@define(kw_only=True)
class HarnessWork:
    """Implements `inspan_runtime.room.Work` with one harness plugin.

    Attributes:
        activation: The bound activation, or None.
        uses_scratch: Whether session files go into the sandbox's own scratch folder, where it has one.
        runtime: What the plugin's install returned.
        artifacts: What was collected, also partly.
        parsed: What the plugin's parser returned, or None.
        gaps: What the runtime itself could not do, for the observations.
        usage: What the sandbox of a run has used, where its provider tells.
        tool_accesses: The grants that the harness has to make usable.
        granted: All grants of the session, also those that it cannot use: their secrets are ours to keep.
        resources_cookies: The jar that tool calls changed, or None.
        model_url: The Model Server's URL, without the rollout's prefix; None: it is not looked after.
        reached: The ways from inside to servers of this host.
        run_parser: Where the parser runs.
    """

    harness: Harness
    seed: SeedRequest
    providers: Mapping[str, ProviderFactory]
    owned: OwnedSandbox | None
    options: Mapping[str, Any]
    cache: RuntimeCache
    uses_scratch: bool = True
    activation: Activation | None = None
    runtime: Mapping[str, Any] = field(factory=dict)
    artifacts: Artifacts = field(factory=Artifacts)
    parsed: ParsedActivation | None = None
    interrupted: bool = False
    sandbox_id: str | None = None
    descriptor: Descriptor | None = None
    gaps: list[ObservationGap] = field(factory=list)
    usage: ResourceUsage | None = None
    tool_accesses: tuple[ToolAccess, ...] = field(default=(), repr=False)
    granted: tuple[ToolAccess, ...] = field(init=False, repr=False)
    resources_cookies: Mapping[str, str] | None = field(default=None, repr=False)
    run_parser: RunParser = in_worker_thread
    model_url: str | None = None
    reached: SessionReach = field(factory=SessionReach)
    _provider: SandboxProvider | None = None
    _installer: SandboxInstaller | None = None

    @granted.default
    def _all_grants(self) -> tuple[ToolAccess, ...]:
        return (*self.seed.tool_accesses, *self.tool_accesses)

    async def create(self, room: Room, key: str, *, timeout_s: float) -> Sandbox:
        """Create our own sandbox under `key`."""
        if self.owned is None:
            raise RequestRefused("there is neither sandbox_access nor a configured sandbox_provider")
        spec = self.owned.spec
        if self.tool_accesses:
            reach = dict.fromkeys((*spec.reach, *loopback_urls(self.tool_accesses)))
            spec = evolve(spec, reach=tuple(reach))
        sandbox = await self._reach(
            self.owned.provider,
            lambda provider: create_with_runtimes(
                provider, spec, self.cache.shared, key=_key(room, key), timeout_s=timeout_s
            ),
        )
        self._known(room, sandbox)
        return sandbox

    async def connect(self, room: Room, *, timeout_s: float) -> Sandbox:
        """Connect to the supplied sandbox; a failed connect closes the provider's client."""
        access = self.seed.sandbox_access
        if access is None:
            raise InspanError("a connect was ordered for a session without sandbox_access")
        connection = access.connection
        sandbox = await self._reach(
            connection.provider_config_ref,
            lambda provider: provider.connect(connection.descriptor, timeout_s=timeout_s),
        )
        self._known(room, sandbox)
        return sandbox

    async def reconnect(self, room: Room) -> Sandbox:
        """Reach the sandbox again after a restart: a supplied one as seeded, ours by its descriptor."""
        if self.owned is None or self.seed.sandbox_access is not None:
            sandbox = await self.connect(room, timeout_s=RECONNECT_TIMEOUT_S)
        else:
            descriptor = self.descriptor
            if descriptor is None:
                raise InspanError("the descriptor of the session's own sandbox is not known")
            sandbox = await self._reach(
                self.owned.provider,
                lambda provider: provider.connect(descriptor, timeout_s=RECONNECT_TIMEOUT_S),
            )
        await self.reached.open_again(sandbox, self.model_url, self.tool_accesses, holder=_holder(room))
        return sandbox

    async def _reach(
        self, provider_name: str, reach: Callable[[SandboxProvider], Awaitable[Sandbox]]
    ) -> Sandbox:
        """What a new client of the provider reaches; one that reaches nothing is closed."""
        provider = self.providers[provider_name]()
        try:
            sandbox = await reach(provider)
        except BaseException:
            # Shielded: a close that cuts this off must not leave the client open.
            with anyio.move_on_after(DROP_TIMEOUT_S, shield=True), suppress(SandboxError):
                await provider.aclose()
            raise
        self._provider = provider
        return sandbox

    def _known(self, room: Room, sandbox: Sandbox) -> None:
        self.sandbox_id, self.descriptor = sandbox.sandbox_id, sandbox.descriptor
        scratch = sandbox.descriptor.get("scratch")
        if isinstance(scratch, str) and self.uses_scratch:
            room.session_dir = f"{scratch}/{posixpath.basename(room.session_dir)}"
        kept = [sandbox.sandbox_id, dict(sandbox.descriptor), room.session_dir]
        room.keep("sandbox", lambda: json.dumps(kept).encode())

    async def stop_sandbox(self, room: Room, key: str, *, timeout_s: float) -> None:
        """Have our own sandbox stopped, by its handle where there is one."""
        if self._provider is None:
            if self.owned is None:
                return
            self._provider = self.providers[self.owned.provider]()
        if room.sandbox is not None:
            await self._take_usage(room.sandbox)
            await self.reached.close()
            await room.sandbox.stop()
        else:
            await self._provider.stop(_key(room, key), timeout_s=timeout_s)
        self._let_go()
        await self._drop_provider()

    async def disconnect(self, room: Room) -> None:
        """Drop the connection and the provider's client."""
        await self.reached.close()
        if room.sandbox is not None:
            await self._take_usage(room.sandbox)
            await room.sandbox.disconnect()
        self._let_go()
        await self._drop_provider()

    async def _take_usage(self, sandbox: Sandbox) -> None:
        """Learn what a run's sandbox has used, where it tells: by now all of the run has ended."""
        if self.activation is None or not is_metered(sandbox):
            return
        with anyio.move_on_after(USAGE_TIMEOUT_S), suppress(SandboxError):
            self.usage = await sandbox.usage()

    def _let_go(self) -> None:
        """Let the host's cache forget that this sandbox uses a runtime of its."""
        # Without an installer the server was restarted since: what it did then is not known.
        if self.sandbox_id is not None and (self._installer is None or self._installer.has_lease):
            # Not in a thread: it is one look into a small folder.
            self.cache.shared.let_go(self.sandbox_id)

    async def _drop_provider(self) -> None:
        # Forgotten only when it is closed: a step that failed here is tried again.
        if self._provider is not None:
            await self._provider.aclose()
            self._provider = None

    async def install(self, room: Room) -> None:
        """Look at the sandbox, then let the plugin make its runtime ready."""
        found = await self._installer_of(room).look(self._wanted(room))
        for warning in found.warnings:
            _logger.info("sandbox %s: %s", self.sandbox_id, warning)
        require(found)
        await self._open_ways(room)
        with without_secrets(self._secrets()):
            self.runtime = dict(await self.harness.install(SessionContext(**self._context(room))))
        room.keep("runtime", lambda: json.dumps(self.runtime).encode())
        await self._try_servers(room)

    async def _open_ways(self, room: Room) -> None:
        await self.reached.open(room.connected, self.model_url, self.tool_accesses, holder=_holder(room))

    def _wanted(self, room: Room) -> Wanted:
        """What the harness declares; a runtime's own needs are looked at when it is installed."""
        image = None
        if self.owned is not None and self.seed.sandbox_access is None:
            given = self.owned.spec.image or ""
            image = given if given.rpartition("@")[2].startswith("sha256:") else None
        needs = self.harness.spec.needs
        return Wanted(
            session_dir=room.session_dir,
            programs=needs.programs,
            certificates=needs.certificates,
            free_mib=needs.free_mib,
            image=image,
        )

    async def _try_servers(self, room: Room) -> None:
        """Connect to the model and the granted servers from inside; the harness gets what can be used."""
        python = (await self._installer_of(room).target()).python or self.runtime.get("python")
        if self.tool_accesses and not isinstance(python, str):
            raise UnsupportedTarget("the sandbox has no Python 3.8 or newer, by which tool grants are tried")
        sandbox, model_url, url = room.connected, self.model_url, None
        if model_url is not None and isinstance(python, str):
            url = self.reached.tried_url(sandbox, model_url)
        inside = self.reached.inside_grants(self.tool_accesses)
        report = await ask_servers(sandbox, str(python), inside, url=url)
        if model_url is not None and url is not None:
            await self.reached.judge_model(model_url, url_problem(report, url))
        tried = judge_grants(report, self.harness.spec, inside)
        names = [grant.name for grant in tried.usable]
        self.tool_accesses = tuple(grant for grant in self.tool_accesses if grant.name in names)
        self.gaps.extend(tried.gaps)
        room.keep("grants", lambda: pack_grants(names, self.gaps))

    async def stage(self, room: Room, *, run_timeout_s: float) -> SandboxCommand:
        """Let the plugin stage the activation."""
        activation = self.activation
        if activation is None:
            raise InspanError("staging was ordered before an activation was bound")
        await self._open_ways(room)
        context = RunContext(
            **self._context(room),
            request=activation.request,
            runtime=self.runtime,
            model_base_url=self.reached.inside(activation.model_base_url),
            model_name=activation.model_name,
            model_key=activation.model_key,
            run_timeout_s=run_timeout_s,
        )
        with without_secrets(self._secrets()):
            return await self.harness.stage(context)

    def _installer_of(self, room: Room) -> SandboxInstaller:
        if self._installer is None:
            lease_s: float | None = DEFAULT_LEASE_S
            if self.owned is not None and self.seed.sandbox_access is None:
                lease_s = self.owned.spec.ttl_s
            self._installer = SandboxInstaller(
                room.connected, self.cache, workdir=room.workdir, lease_s=lease_s
            )
        return self._installer

    def _context(self, room: Room) -> dict[str, Any]:
        return {
            "sandbox": room.connected,
            "session_dir": room.session_dir,
            "workdir": room.workdir,
            "installer": self._installer_of(room),
            "options": self.options,
            "tool_accesses": self.reached.inside_grants(self.tool_accesses),
        }

    def forget_run(self) -> None:
        """Let go of what the run left, once its close is answered."""
        self.activation, self.parsed, self.artifacts = None, None, Artifacts()
        self.resources_cookies = None

    async def collect(self, room: Room) -> tuple[CollectResult, str | None]:
        """Let the plugin copy its artifacts; what was copied before it failed is kept."""
        context = ArtifactContext(**self._context(room))
        try:
            await self._take_jar(room)
            await self.harness.collect(context)
        except SandboxGone:
            raise
        except Exception as error:  # a plugin's hook: its failure is data
            result = CollectResult.FAILED if is_transport_error(error) else CollectResult.ERROR
            return result, redacted_text(f"{type(error).__name__}: {error}", self._secrets())
        finally:
            self.artifacts = redacted(context.artifacts, self._secrets())
            room.keep("artifacts", lambda: pack_artifacts(self.artifacts))
        cut = [p.detail for p in context.problems if p.code == "artifact_truncated"]
        return (CollectResult.LIMIT if cut else CollectResult.OK), "; ".join(cut) or None

    async def _take_jar(self, room: Room) -> None:
        request = {} if self.activation is None else self.activation.request
        jar = await take_jar(room, self.tool_accesses, request)
        self.resources_cookies = jar.cookies
        self.gaps.extend(jar.gaps)

    def _secrets(self) -> tuple[str, ...]:
        """What the run may have known and nobody else should read, cookies that it was given included."""
        key = None if self.activation is None else self.activation.model_key
        return secrets_of(self.granted, key, *(self.resources_cookies or {}).values())

    async def parse(self, room: Room) -> tuple[Outcome, str | None]:
        """Let the plugin parse, where it cannot block the server."""
        receipt, activation = room.receipt, self.activation
        if activation is None:
            raise InspanError("parsing was ordered before an activation was bound")
        run = ParseInput(
            artifacts=self.artifacts,
            request=activation.request,
            return_code=None if receipt is None else receipt.return_code,
            timed_out=receipt is not None and receipt.timed_out,
            interrupted=self.interrupted,
            model_name=activation.model_name,
            sandbox_id=self.sandbox_id,
            options=self.options,
        )
        parsed = await self.run_parser(self.harness.parse, run)
        room.keep("parsed", lambda: pack_parsed(parsed))
        self.parsed = parsed
        return parsed.outcome, None if parsed.detail is None else str(parsed.detail)


def _holder(room: Room) -> str:
    """The name by which this record of the session holds its ways."""
    return posixpath.basename(room.session_dir)


def _key(room: Room, key: str) -> str:
    """The machine's key, made unique to this record of the session.

    A create that ends after its session was undone can then never pass for the sandbox of a later seed.
    """
    return f"{key}.{posixpath.basename(room.session_dir)}"
