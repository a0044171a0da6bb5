"""Which Python runs the agent inside, and what must be mounted for it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from attrs import field, frozen

from inspan_core.errors import SandboxCreateError
from inspan_core.sandbox import Mount
from inspan_runtime.providers.interpreter import Interpreter
from inspan_runtime.providers.spec_checks import OWN_FOLDER

VISIBLE = ("/usr/", "/opt/", "/nix/")
OLDEST_MINOR = 8
NEWEST_MINOR = 30


@frozen(kw_only=True)
class GuestInterpreter:
    """An interpreter as it is seen inside.

    Attributes:
        path: Its executable inside.
        mounts: What makes it visible there.
        env: What the agent's own process needs; commands do not get it.
        same_version: Whether it understands the code objects of this process.
    """

    path: str
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(factory=dict)
    same_version: bool = True


def guest_interpreter(own: Interpreter, root: str) -> GuestInterpreter:
    """Return the interpreter for a sandbox over `root`.

    Args:
        own: What runs this process; used in place when the sandbox shows it, else mounted read-only.
        root: ``"host"``, or a folder with a root file system, whose own Python 3.8 or newer is used.

    Raises:
        SandboxCreateError: The folder has no Python.
    """
    if root != "host":
        return _of_tree(root)
    if own.path.startswith(VISIBLE) and own.prefix.startswith(tuple(one.rstrip("/") for one in VISIBLE)):
        return GuestInterpreter(path=own.path)
    inside = os.path.join(OWN_FOLDER, os.path.relpath(own.path, own.prefix))
    return GuestInterpreter(
        path=inside,
        mounts=(Mount(source=own.prefix, target=OWN_FOLDER),),
        env={"LD_LIBRARY_PATH": os.path.join(OWN_FOLDER, "lib")},
    )


def _of_tree(root: str) -> GuestInterpreter:
    for folder in ("usr/bin", "usr/local/bin", "bin", "opt/python/bin"):
        for minor in range(NEWEST_MINOR, OLDEST_MINOR - 1, -1):
            path = f"{folder}/python3.{minor}"
            if os.path.lexists(os.path.join(root, path)):
                return GuestInterpreter(path="/" + path, same_version=False)
    raise SandboxCreateError(
        f"root: {root} has no Python 3.{OLDEST_MINOR} or newer, which the exec agent needs"
    )
