"""Create, find and reach containers."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from attrs import evolve

from inspan_core.errors import (
    ConfigError,
    ProviderUnavailable,
    SandboxConnectError,
    SandboxError,
    SandboxGone,
    SandboxTransportError,
)
from inspan_core.sandbox import Descriptor, Sandbox, SandboxSpec
from inspan_runtime.providers import boot, state_folder
from inspan_runtime.providers.docker.borrowed_ways import open_borrowed_way
from inspan_runtime.providers.docker.engine import Engine, explained, find_engine
from inspan_runtime.providers.docker.images import Image, Images
from inspan_runtime.providers.docker.plain_sandbox import (
    HALTED,
    RUNNING,
    PlainSandbox,
    remove_arguments,
    remove_container,
)
from inspan_runtime.providers.docker.portable import own_architecture, portable_interpreter
from inspan_runtime.providers.docker.run_command import RunPlan, run_arguments
from inspan_runtime.providers.docker.strays import strays
from inspan_runtime.providers.environment import command_environment, default_cache_dir
from inspan_runtime.providers.holding import HeldSandbox
from inspan_runtime.providers.interpreter import own_interpreter
from inspan_runtime.providers.kept_sandbox import stop_kept
from inspan_runtime.providers.kept_sandboxes import KeeperRefused, KeptSandboxes, Plan
from inspan_runtime.providers.reach import loopback_addresses
from inspan_runtime.providers.spec_checks import check_mounts, check_options, check_spec
from inspan_runtime.providers.ways import open_way

NAME = "docker"
OPTIONS: Mapping[str, type | tuple[type, ...]] = {
    "runtime_dir": str,
    "cache_dir": str,
    "engine": str,
    "engine_options": list,
    "image": str,
    "network": str,
    "pull": str,
    "agent": str,
    "run_options": list,
}
CHOICES = {"pull": ("never", "missing"), "agent": ("auto", "always", "never")}
CAPABILITIES = frozenset({"processes", "options", "isolation", "reach", "late_reach", "mounts", "limits"})
CONTAINER_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}")
INSPECT_LIMIT_S = 30.0
HOME = "/root"
# What counts the kills of the memory's limit, as a container sees its own group in version 1 and 2.
MEMORY_EVENTS = (b"/sys/fs/cgroup/memory/memory.oom_control", b"/sys/fs/cgroup/memory.events")
_PACKAGE = "inspan_runtime.providers.docker."
_AGENT_MODULES = (*boot.AGENT_MODULES, _PACKAGE + "container_agent")
_KEEPER_MODULES = (*boot.KEEPER_MODULES, _PACKAGE + "engine_keeper")
_CONTAINER_FORMAT = "{{.Id}} {{.State.Status}} {{.Image}} {{.Config.WorkingDir}}"


class DockerProvider:
    """Implements `inspan_core.sandbox.SandboxProvider`.

    Args:
        options: ``engine``: the program, ``docker`` by default, or ``podman``. ``engine_options``: a list
            given before every subcommand, for example ``[-H, "unix:///run/other.sock"]``. ``image``: used
            when a specification names none. ``network``: ``none`` by default, or a network of the engine's.
            ``pull``: ``never`` by default, or ``missing``. ``agent``: ``auto`` by default: mounted where the
            engine is on this host and the image is of its architecture; ``always`` or ``never``.
            ``run_options``: a list of further options for the engine's ``run``. ``runtime_dir``: where the
            state folders are; ``cache_dir``: where the interpreter that is mounted is made.
    """

    name = NAME

    def __init__(self, options: Mapping[str, Any]) -> None:
        check_options(NAME, options, OPTIONS)
        for option, allowed in CHOICES.items():
            if options.get(option, allowed[0]) not in allowed:
                raise ConfigError(
                    f"provider {NAME}: option {option} is {options[option]!r}, expected one of {allowed}"
                )
        for option in ("engine_options", "run_options"):
            if not all(isinstance(one, str) for one in options.get(option, ())):
                raise ConfigError(f"provider {NAME}: option {option} has what is no string")
        self.options = dict(options)
        needs_agent = options.get("agent") == "always"
        self.capabilities = CAPABILITIES | ({"usage"} if needs_agent else set())
        runtime_dir = Path(options.get("runtime_dir") or state_folder.default_runtime_dir()).absolute()
        self._cache_dir = Path(options.get("cache_dir") or f"{default_cache_dir()}/interpreters").absolute()
        self._interpreter = own_interpreter()
        self._kept = KeptSandboxes(NAME, runtime_dir, self._interpreter, self._end_stray)
        self._found_engine: Engine | None = None
        self._images = Images(may_pull=options.get("pull") == "missing")

    def _engine(self) -> Engine:
        if self._found_engine is None:
            name = self.options.get("engine", "docker")
            self._found_engine = find_engine(name, self.options.get("engine_options", ()))
        return self._found_engine

    async def create(self, spec: SandboxSpec, *, key: str, timeout_s: float = 60.0) -> Sandbox:
        """See `inspan_core.sandbox.SandboxProvider.create`."""
        self._check(spec)
        reference = spec.image or self.options.get("image")
        if not reference or reference.startswith("-"):
            raise ConfigError(
                f"image: {reference!r} is given; provider {NAME} needs the name or id of an image"
            )
        engine = await anyio.to_thread.run_sync(self._engine)
        image = await self._images.find(engine, reference)
        base = await self._base(engine, image)
        create = partial(self._kept.create, spec=spec, key=key, timeout_s=timeout_s)
        try:
            try:
                made = await create(partial(self._plan, spec, engine, image, base))
            except KeeperRefused as error:
                if base is None or self._mode == "always" or not _is_elsewhere(str(error), base):
                    raise
                made = await create(partial(self._plan, spec, engine, image, None))
        except KeeperRefused as error:
            raise _meant(error, what=f"image {reference}") from error
        if made.descriptor.get("agent") is not False:
            return made
        plain = await anyio.to_thread.run_sync(self._own_plain, engine, made.descriptor)
        if not image.is_ours:
            await self._try_foreign(plain, reference, image)
        return plain

    async def _try_foreign(self, sandbox: PlainSandbox, reference: str, image: Image) -> None:
        """Refuse a container whose first process cannot run; the engine calls it started all the same."""
        try:
            await sandbox.exec(["true"], timeout_s=INSPECT_LIMIT_S, cwd="/")
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await sandbox.stop()
            if not isinstance(error, SandboxGone):
                raise
            raise ConfigError(
                f"image: {reference} is for {image.architecture}, and its programs do not run on this "
                f"{own_architecture()} host"
            ) from error

    @property
    def _mode(self) -> str:
        return str(self.options.get("agent", "auto"))

    def _check(self, spec: SandboxSpec) -> None:
        check_spec(NAME, evolve(spec, image=None))
        check_mounts(spec.mounts, spec.workdir, self._kept.runtime_dir)
        loopback_addresses(spec.reach)
        if spec.root != "host":
            raise ConfigError(f"root: {spec.root!r}: provider {NAME} takes an image, not a folder")

    async def _base(self, engine: Engine, image: Image) -> Path | None:
        """Return the interpreter to mount, or None where there can be no agent."""
        if self._mode == "never":
            return None
        if self._mode == "auto" and not (engine.is_local and image.is_ours):
            return None
        make = partial(portable_interpreter, self._interpreter, self._cache_dir)
        try:
            return await anyio.to_thread.run_sync(make)
        except ProviderUnavailable:
            if self._mode == "always":
                raise
            return None

    def _plan(
        self, spec: SandboxSpec, engine: Engine, image: Image, base: Path | None, sandbox_id: str
    ) -> Plan:
        state = self._kept.runtime_dir / NAME / sandbox_id
        reach = loopback_addresses(spec.reach)
        network = self.options.get("network", "none")
        run = RunPlan(
            engine=engine,
            image=image.id,
            sandbox_id=sandbox_id,
            state=state,
            base=base,
            network=network,
            extra=tuple(self.options.get("run_options", ())),
        )
        defaults = command_environment(home=HOME, extra={})
        passed = {} if base is not None else {"LANG": "C.UTF-8", **spec.env}
        return Plan(
            descriptor={
                "workdir": spec.workdir,
                "isolation": "container",
                "image": image.id,
                "image_digests": list(image.digests),
                "network": network,
                "agent": base is not None,
            },
            orders=lambda: {
                "executable": engine.executable,
                "argv": [],
                "bwrap": [],
                "map_ids": False,
                "root": None,
                "isolated": True,
                "reach": reach,
                "engine": engine.argv(),
                "engine_env": {**engine.env, **passed},
                "run": run_arguments(spec, run),
                "remove": remove_arguments(engine, sandbox_id),
                "name": sandbox_id,
                "agent": base is not None,
            },
            agent_orders={
                "env": defaults,
                "own_env": {os.fsencode(name): os.fsencode(value) for name, value in spec.env.items()},
                "workdir": os.fsencode(spec.workdir),
                "reach": reach,
                "isolated": True,
                "memory_paths": MEMORY_EVENTS if spec.memory_mib is not None else (),
            },
            agent_modules=_AGENT_MODULES,
            keeper_modules=_KEEPER_MODULES,
        )

    async def connect(self, descriptor: Descriptor, *, timeout_s: float = 30.0) -> Sandbox:
        """See `inspan_core.sandbox.SandboxProvider.connect`.

        Takes also ``{"sandbox_id": <container>, "workdir"?, "ports"?}`` of a container that somebody else
        made.
        """
        given = _checked(descriptor)
        engine = await anyio.to_thread.run_sync(self._engine)
        state = self._kept.runtime_dir / NAME / given["sandbox_id"]
        meta = await anyio.to_thread.run_sync(state_folder.read_meta, state)
        if Path(given.get("state", state)) != state:
            raise SandboxConnectError(
                f"descriptor of {given['sandbox_id']}: its state folder {given['state']} is not {state}"
            )
        if meta is None and "state" in given:
            raise SandboxGone(f"{given['sandbox_id']} no longer exists{state_folder.ending_of(state)}")
        if meta is None:
            return await self._plain(engine, given, timeout_s=timeout_s)
        known = {**meta["descriptor"], **given}
        if known["agent"]:
            return await self._kept.connect(known, timeout_s=timeout_s)
        await anyio.to_thread.run_sync(state_folder.add_holder, state)
        if not await anyio.to_thread.run_sync(state_folder.is_held, state):
            raise SandboxGone(f"{given['sandbox_id']} no longer exists{state_folder.ending_of(state)}")
        return await anyio.to_thread.run_sync(self._own_plain, engine, known)

    def _own_plain(self, engine: Engine, descriptor: Descriptor) -> PlainSandbox:
        """Return a sandbox of our own that has no agent; what the engine called it is in its folder."""
        name, state = str(descriptor["sandbox_id"]), Path(str(descriptor["state"]))
        try:
            identity = (state / "container").read_text(encoding="ascii").strip()
        except OSError as error:
            raise SandboxGone(f"{name} no longer exists{state_folder.ending_of(state)}") from error
        reach = partial(open_way, state, "control.sock")
        return PlainSandbox(engine, identity, descriptor, partial(stop_kept, state, name), reach)

    async def _plain(
        self, engine: Engine, descriptor: Descriptor, *, timeout_s: float = INSPECT_LIMIT_S
    ) -> PlainSandbox:
        name = str(descriptor["sandbox_id"])
        inspect = ("container", "inspect", f"--format={_CONTAINER_FORMAT}", name)
        try:
            said = await engine.asked(*inspect, what=name, timeout_s=timeout_s)
        except SandboxConnectError as error:  # Of the engine's words it is only known that it failed.
            raise SandboxTransportError(str(error)) from error
        identity, status, image, folder = (*said.split(" ", 3), "")[:4]
        if status in HALTED:
            raise SandboxTransportError(f"{name} is {status}: it can be connected to when it runs again")
        if status != RUNNING:
            raise SandboxGone(f"{name} is there, but does not run")
        found = {"provider": NAME, "agent": False, "isolation": "container", **descriptor}
        found["image"] = image if image.startswith("sha256:") else f"sha256:{image}"
        _check_pinned(descriptor, found["image"])
        if not found.get("workdir"):
            found["workdir"] = folder or "/"
        stop = partial(remove_container, engine, identity, what=name)
        reach = partial(
            open_borrowed_way,
            engine,
            identity,
            runtime_dir=self._kept.runtime_dir,
            interpreter=self._interpreter,
        )
        return PlainSandbox(engine, identity, found, stop, reach)

    async def stop(self, key: str, *, timeout_s: float = 30.0) -> None:
        """See `inspan_core.sandbox.SandboxProvider.stop`."""
        await self._kept.stop(key, timeout_s=timeout_s)

    async def list(self, labels: Mapping[str, str]) -> list[Descriptor]:
        """See `inspan_core.sandbox.SandboxProvider.list`."""
        return await self._kept.find(labels)

    async def held(self) -> tuple[HeldSandbox, ...]:
        """See `inspan_runtime.providers.holding.HoldingProvider.held`: containers without a folder, too."""
        found = await self._kept.held()
        try:
            engine = await anyio.to_thread.run_sync(self._engine)
        except ProviderUnavailable:
            if found:
                raise
            return ()
        return found + await strays(engine, self._kept.runtime_dir / NAME, {one.sandbox_id for one in found})

    async def remove(self, held: HeldSandbox) -> None:
        """See `inspan_runtime.providers.holding.HoldingProvider.remove`."""
        if held.key is None and held.descriptor is None:
            engine = await anyio.to_thread.run_sync(self._engine)
            await remove_container(engine, held.sandbox_id, what=held.sandbox_id)
        await self._kept.remove(held)

    async def aclose(self) -> None:
        """See `inspan_core.sandbox.SandboxProvider.aclose`: nothing is held."""

    def _end_stray(self, folder: Path) -> None:
        """Remove the container of a keeper that was killed."""
        engine = self._engine()
        try:
            run = subprocess.run(
                engine.argv(*remove_arguments(engine, folder.name)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=INSPECT_LIMIT_S,
                env=dict(engine.env),
            )
        except subprocess.TimeoutExpired as error:
            raise SandboxTransportError(f"{folder.name}: the engine did not remove it in time") from error
        if run.returncode != 0:
            meant = explained(run.stderr.decode("utf-8", "replace"), what=folder.name)
            if not isinstance(meant, SandboxGone):
                raise meant


def _check_pinned(descriptor: Descriptor, image: str) -> None:
    """Refuse a container that was not made from the image that its owner's descriptor names by its id."""
    pinned = descriptor.get("image")
    if isinstance(pinned, str) and pinned.startswith("sha256:") and pinned != image:
        raise SandboxConnectError(
            f"{descriptor['sandbox_id']} was made from image {image}, its descriptor says {pinned}"
        )


def _checked(descriptor: Descriptor) -> dict[str, Any]:
    given = dict(descriptor)
    name = given.get("sandbox_id")
    if not isinstance(name, str) or not CONTAINER_NAME.fullmatch(name):
        raise SandboxConnectError(
            f"descriptor of a docker sandbox: sandbox_id is {name!r}, not a container's name"
        )
    if given.get("provider", NAME) != NAME:
        raise SandboxConnectError(f"this is a descriptor of provider {given['provider']!r}, not of {NAME!r}")
    for field in ("workdir", "state"):
        value = given.get(field, "/")
        if not isinstance(value, str) or not value.startswith("/"):
            raise SandboxConnectError(f"descriptor of {name}: {field} is {value!r}, not an absolute path")
    return given


def _is_elsewhere(said: str, base: Path) -> bool:
    """Whether the engine does not see this host's folders."""
    is_missing = re.search(r"bind source path does not exist|statfs .*: no such file", said)
    return bool(is_missing) and (str(base) in said or "/door" in said)


def _meant(error: KeeperRefused, *, what: str) -> SandboxError:
    """Return what the engine's words mean; a keeper's own refusal as it is."""
    found = explained(str(error), what=what)
    return error if isinstance(found, SandboxConnectError | SandboxGone) else found
