"""What every provider refuses in a specification."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inspan_core.errors import ConfigError, MountConflict
from inspan_core.sandbox import Mount, SandboxSpec

# Where an isolated sandbox finds the interpreter of its agent, when it is not a program that it sees anyway.
OWN_FOLDER = "/run/inspan/base"
NEUTRAL_NAME = "/run/inspan/init"
LIMITS = ("cpu", "memory_mib", "pids")
RESERVED = ("/proc", "/dev", "/sys", "/run/inspan")


def check_options(
    kind: str, options: Mapping[str, Any], known: Mapping[str, type | tuple[type, ...]]
) -> None:
    """Refuse options that the provider does not know, or of another type.

    Raises:
        ConfigError: Naming the key.
    """
    for key, value in options.items():
        if key not in known:
            raise ConfigError(f"provider {kind}: unknown option {key!r}; known: {', '.join(sorted(known))}")
        if not isinstance(value, known[key]) or (isinstance(value, bool) and known[key] is not bool):
            raise ConfigError(f"provider {kind}: option {key} is {value!r}, expected {_name_of(known[key])}")


def check_spec(kind: str, spec: SandboxSpec) -> None:
    """Refuse a specification that no sandbox of the embedded kinds can have.

    Raises:
        ConfigError: Naming the field.
    """
    if spec.image is not None:
        raise ConfigError(f"image: {spec.image!r} is given, but provider {kind} has no images; use root")
    if not _is_plain(spec.workdir):
        raise ConfigError(f"workdir: {spec.workdir!r} is not an absolute, normalised path below /")
    if any(_inside(spec.workdir, one) for one in RESERVED):
        raise ConfigError(f"workdir: {spec.workdir!r} lies in a reserved folder ({', '.join(RESERVED)})")
    if spec.ttl_s is not None and not spec.ttl_s > 0:
        raise ConfigError(f"ttl_s: {spec.ttl_s!r} is not greater than 0")
    for limit, most in limits_of(spec).items():
        if not most > 0:
            raise ConfigError(f"{limit}: {most!r} is not greater than 0")
    for name, value in spec.env.items():
        if not name or "=" in name or "\0" in name + value or not _is_encodable(name + value):
            raise ConfigError(f"env: {name!r} is not a variable that a process can have")


def limits_of(spec: SandboxSpec) -> dict[str, float | int]:
    """Return the limits that a specification has."""
    return {limit: getattr(spec, limit) for limit in LIMITS if getattr(spec, limit) is not None}


def refuse_limits(kind: str, spec: SandboxSpec) -> None:
    """Refuse limits, for a provider that cannot keep them.

    Raises:
        ConfigError: Naming the first one.
    """
    for limit, value in limits_of(spec).items():
        raise ConfigError(f"{limit}: {value!r} is given, but provider {kind} cannot limit it")


def check_mounts(mounts: Sequence[Mount], workdir: str, runtime_dir: Path) -> None:
    """Refuse mounts that cannot be made, and those that would show the sockets of sandboxes.

    Args:
        mounts: The specification's.
        workdir: Its folder inside.
        runtime_dir: Where the state folders are.

    Raises:
        MountConflict: Naming the mount.
    """
    for number, one in enumerate(mounts):
        what = f"mount of {one.source} at {one.target}"
        if not _is_plain(one.target):
            raise MountConflict(f"{what}: the target is not an absolute, normalised path below /")
        if _inside(one.target, workdir):
            raise MountConflict(f"{what}: the target lies inside workdir {workdir}")
        if _inside(workdir, one.target):
            raise MountConflict(f"{what}: the target would cover workdir {workdir}")
        for reserved in RESERVED:
            if _inside(one.target, reserved) or _inside(reserved, one.target):
                raise MountConflict(f"{what}: the target is reserved ({reserved})")
        for other in mounts[:number]:
            if _inside(one.target, other.target) or _inside(other.target, one.target):
                raise MountConflict(
                    f"{what}: the target is taken by the mount of {other.source} at {other.target}"
                )
        if not os.path.isabs(one.source):
            raise MountConflict(f"{what}: the source is not an absolute path")
        try:
            mode = os.stat(one.source).st_mode
        except OSError as error:
            raise MountConflict(f"{what}: the source cannot be used: {error.strerror}") from error
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise MountConflict(f"{what}: the source is neither a folder nor a regular file")
        source, runtime = os.path.realpath(one.source), os.path.realpath(runtime_dir)
        if _inside(runtime, source) or _inside(source, runtime):
            raise MountConflict(f"{what}: it would show {runtime}, which has the sockets of all sandboxes")


def _is_plain(path: str) -> bool:
    is_normal = path.startswith("/") and path != "/" and posixpath.normpath(path) == path
    return is_normal and "\0" not in path and _is_encodable(path)


def _is_encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _name_of(kinds: type | tuple[type, ...]) -> str:
    return " or ".join(one.__name__ for one in (kinds if isinstance(kinds, tuple) else (kinds,)))
