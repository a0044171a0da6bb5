"""Provider ``bubblewrap``: isolated sandboxes without a daemon, the embedded default.

As root: a private writable root (an overlay over the host's, secrets hidden, or over a folder that holds a
root file system), own pid, mount, ipc, uts, cgroup and network namespaces, ids 0 to 65535, and only the
capabilities that a process needs over its own files and users. As an ordinary user, or where overlays are
not permitted: the host's root read-only, with a writable workdir, HOME, /tmp and top level, and one user id;
the descriptor says so as ``root``: ``read-only`` and in ``notice``.

All that a sandbox writes is in memory (tmpfs) and is gone with it.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from attrs import evolve

from inspan_core.errors import ConfigError, MountConflict, ProviderUnavailable, SandboxCreateError
from inspan_core.sandbox import Descriptor, Sandbox, SandboxSpec
from inspan_runtime.providers import bwrap_command, state_folder
from inspan_runtime.providers.boot import FLAGS
from inspan_runtime.providers.environment import command_environment, default_cache_dir
from inspan_runtime.providers.guest_interpreter import GuestInterpreter, guest_interpreter
from inspan_runtime.providers.holding import HeldSandbox
from inspan_runtime.providers.host_root import HostView, view_of_host
from inspan_runtime.providers.interpreter import own_interpreter
from inspan_runtime.providers.keeper.cgroups import remove_recorded
from inspan_runtime.providers.keeper.launch import MEMORY_FD
from inspan_runtime.providers.kept_sandboxes import KeeperRefused, KeptSandboxes, Plan
from inspan_runtime.providers.reach import loopback_addresses
from inspan_runtime.providers.root_tree import check_root, check_targets, tree_of
from inspan_runtime.providers.spec_checks import check_mounts, check_options, check_spec, limits_of

_logger = logging.getLogger(__name__)
NAME = "bubblewrap"
OPTIONS: Mapping[str, type | tuple[type, ...]] = {
    "runtime_dir": str,
    "bwrap": str,
    "hide": list,
    "writable_root": bool,
    "space_limit_mib": int,
    "cache_dir": str,
}
HOME = "/root"
MAPPED_IDS = 65536
NOTICE = (
    "the root is read-only and there is one user id, because this user may not mount an overlay: "
    "{workdir}, /root, /tmp and new top-level folders are writable; run as root for a writable root"
)


class BubblewrapProvider:
    """Implements `inspan_core.sandbox.SandboxProvider`.

    Args:
        options: ``runtime_dir``: where the state folders are, by default below XDG_RUNTIME_DIR or /tmp.
            ``bwrap``: the program, by default the one in PATH. ``hide``: absolute host paths that no
            sandbox sees. ``writable_root``: false for the read-only root also as root.
            ``space_limit_mib``: how much a sandbox may write to its root (and to each of /tmp, /run and
            /dev/shm), by default half of the memory. ``cache_dir``: where the tars of root file systems
            are unpacked, by default in the user's cache folder.
    """

    name = NAME
    capabilities = frozenset(
        ("processes", "options", "isolation", "reach", "late_reach", "mounts", "limits", "usage")
    )

    def __init__(self, options: Mapping[str, Any]) -> None:
        check_options(NAME, options, OPTIONS)
        self.options = dict(options)
        self._hide = tuple(options.get("hide", ()))
        for path in self._hide:
            if not isinstance(path, str) or not os.path.isabs(path):
                raise ConfigError(f"provider {NAME}: option hide has {path!r}, expected absolute paths")
        runtime_dir = Path(options.get("runtime_dir") or state_folder.default_runtime_dir()).absolute()
        self._writable_root: bool = options.get("writable_root", True)
        self._space_limit_mib: int | None = options.get("space_limit_mib")
        self._bwrap: str | None = options.get("bwrap")
        self._trees = Path(options.get("cache_dir") or default_cache_dir()).absolute() / "trees"
        self._interpreter = own_interpreter()
        self._kept = KeptSandboxes(NAME, runtime_dir, self._interpreter, self._end_stray)

    async def create(self, spec: SandboxSpec, *, key: str, timeout_s: float = 60.0) -> Sandbox:
        """See `inspan_core.sandbox.SandboxProvider.create`."""
        self._check(spec)
        bwrap = find_bubblewrap(self._bwrap)
        create = partial(self._kept.create, spec=spec, key=key, timeout_s=timeout_s)
        if self._writable_root and has_mapped_ids():
            try:
                return await create(partial(self._plan, spec, bwrap, True))
            except KeeperRefused as error:
                if error.kind != "overlay" or spec.root != "host":
                    raise explained(error) from error
        if spec.root != "host":
            raise SandboxCreateError(
                f"root: {spec.root!r} needs a writable root, which only root can have here"
            )
        check_user_namespaces()
        say_read_only()
        try:
            return await create(partial(self._plan, spec, bwrap, False))
        except KeeperRefused as error:
            raise explained(error) from error

    def _check(self, spec: SandboxSpec) -> None:
        check_spec(NAME, spec)
        check_mounts(spec.mounts, spec.workdir, self._kept.runtime_dir)
        loopback_addresses(spec.reach)
        check_root(spec.root)

    def _plan(self, spec: SandboxSpec, bwrap: str, is_writable: bool, sandbox_id: str) -> Plan:
        if spec.root != "host":
            spec = evolve(spec, root=tree_of(spec.root, self._trees))
            check_targets(spec.root, [one.target for one in spec.mounts])
        guest = guest_interpreter(self._interpreter, spec.root)
        reach = loopback_addresses(spec.reach)
        limits = limits_of(spec)
        return Plan(
            descriptor={
                "workdir": spec.workdir,
                "isolation": "namespaces",
                "python": guest.python,
                "root": "writable" if is_writable else "read-only",
                **({} if is_writable else {"notice": NOTICE.format(workdir=spec.workdir)}),
            },
            orders=lambda: {
                "executable": bwrap,
                "argv": [*guest.argv, *FLAGS],
                "bwrap": self._command(spec, guest, is_writable, sandbox_id),
                "map_ids": is_writable,
                "root": self._root_orders(spec) if is_writable else None,
                "isolated": True,
                "reach": reach,
                "limits": limits,
            },
            agent_orders={
                "env": command_environment(home=HOME, extra={**guest.command_env, **spec.env}),
                "workdir": os.fsencode(spec.workdir),
                "reach": reach,
                "isolated": True,
                **({"memory_fd": MEMORY_FD} if "memory_mib" in limits else {}),
            },
            same_version=guest.same_version,
        )

    def _command(
        self, spec: SandboxSpec, guest: GuestInterpreter, is_writable: bool, sandbox_id: str
    ) -> list[str]:
        size = None if self._space_limit_mib is None else self._space_limit_mib * 1024 * 1024
        if is_writable:
            root = [*bwrap_command.mapped_ids(), *bwrap_command.writable_root("space/merged")]
        else:
            needed = [*(one.target for one in (*spec.mounts, *guest.mounts)), spec.workdir]
            root = [*bwrap_command.own_id(), *bwrap_command.read_only_root(self._view(), needed, size)]
        return [
            "bwrap",
            *bwrap_command.isolation(sandbox_id),
            *root,
            *bwrap_command.kernel_file_systems(size),
            *([] if is_writable else bwrap_command.folder_in_memory(spec.workdir, size)),
            *bwrap_command.mounts([*spec.mounts, *guest.mounts]),
            *(part for name, target in guest.links for part in ("--symlink", target, name)),
            *(part for name, value in guest.env.items() for part in ("--setenv", name, value)),
            "--chdir",
            "/",
            "--",
        ]

    def _view(self) -> HostView:
        return view_of_host((*self._hide, str(self._kept.runtime_dir)))

    def _root_orders(self, spec: SandboxSpec) -> dict[str, Any]:
        view = self._view() if spec.root == "host" else WHOLE
        size = b"" if self._space_limit_mib is None else b"%dm" % self._space_limit_mib
        return {
            "lower": b"/" if spec.root == "host" else os.fsencode(os.path.realpath(spec.root)),
            "inner_mounts": [os.fsencode(one) for one in view.inner_mounts],
            "hidden": [os.fsencode(one) for one in view.hidden],
            "empty": [(os.fsencode(path), mode) for path, mode in view.empty],
            "files": [(os.fsencode(path), mode, data) for path, mode, data in view.files],
            "size": size,
        }

    def _end_stray(self, folder: Path) -> None:
        remove_recorded(str(self._kept.runtime_dir / NAME / folder.name))

    async def connect(self, descriptor: Descriptor, *, timeout_s: float = 30.0) -> Sandbox:
        """See `inspan_core.sandbox.SandboxProvider.connect`."""
        return await self._kept.connect(descriptor, timeout_s=timeout_s)

    async def stop(self, key: str, *, timeout_s: float = 30.0) -> None:
        """See `inspan_core.sandbox.SandboxProvider.stop`."""
        await self._kept.stop(key, timeout_s=timeout_s)

    async def list(self, labels: Mapping[str, str]) -> list[Descriptor]:
        """See `inspan_core.sandbox.SandboxProvider.list`."""
        return await self._kept.find(labels)

    async def held(self) -> tuple[HeldSandbox, ...]:
        """See `inspan_runtime.providers.holding.HoldingProvider.held`."""
        return await self._kept.held()

    async def remove(self, held: HeldSandbox) -> None:
        """See `inspan_runtime.providers.holding.HoldingProvider.remove`."""
        await self._kept.remove(held)

    async def aclose(self) -> None:
        """See `inspan_core.sandbox.SandboxProvider.aclose`: nothing is held."""


WHOLE = HostView(hidden=(), empty=(), files=(), inner_mounts=())


@cache
def say_read_only() -> None:
    """Warn once in a process; each sandbox's descriptor says it again."""
    _logger.warning("bubblewrap sandboxes: %s", NOTICE.format(workdir="the workdir"))


def find_bubblewrap(given: str | None) -> str:
    """Return the program's path.

    Raises:
        ProviderUnavailable: It is not there.
    """
    if sys.platform != "linux":
        raise ProviderUnavailable(
            f"provider bubblewrap needs Linux, this is {sys.platform}; use provider docker"
        )
    path = shutil.which(given or "bwrap")
    if path is None:
        raise ProviderUnavailable(
            f"{given or 'bwrap'} was not found; install it with: apt-get install bubblewrap"
        )
    return path


def has_mapped_ids() -> bool:
    """Whether this process is a root that can give a sandbox the ids 0 to 65535."""
    if os.geteuid() != 0:
        return False
    with open("/proc/self/uid_map", encoding="ascii") as file:
        first, _, count = (int(one) for one in file.readline().split())
    return first == 0 and count >= MAPPED_IDS


def check_user_namespaces() -> None:
    """Refuse a kernel that says that it gives no user namespaces.

    Raises:
        ProviderUnavailable: Naming the setting.
    """
    for name in ("user/max_user_namespaces", "kernel/unprivileged_userns_clone"):
        try:
            value = Path("/proc/sys", name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if value == "0":
            setting = name.replace("/", ".")
            raise ProviderUnavailable(
                f"user namespaces are off: `sysctl {setting}` is 0; set it to let bubblewrap work"
            )


def explained(error: KeeperRefused) -> Exception:
    """Return the error that says what the host lacks, where bubblewrap's words tell it."""
    text = str(error)
    if error.kind == "limits":
        return ProviderUnavailable(
            f"limits: {text}; run as root, or in a group that is delegated to this user with its controllers"
        )
    if "namespace" in text or "uid map" in text or "unshare" in text:
        return ProviderUnavailable(
            f"bubblewrap may not make namespaces here ({text}); check `sysctl user.max_user_namespaces "
            f"kernel.unprivileged_userns_clone kernel.apparmor_restrict_unprivileged_userns`, "
            f"and in a container that it may create user namespaces"
        )
    if "Can't find source path" in text or "Can't create file at" in text or "Can't mkdir" in text:
        return MountConflict(f"a mount could not be made: {text}")
    return error
