"""Which Python runs the agent inside, and what must be shown there for it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Mapping, Sequence

from attrs import field, frozen

from inspan_core.errors import SandboxCreateError
from inspan_core.sandbox import Mount
from inspan_runtime.providers.interpreter import Interpreter
from inspan_runtime.providers.spec_checks import NEUTRAL_NAME, OWN_FOLDER

VISIBLE = ("/usr/", "/opt/", "/nix/")
OLDEST_MINOR = 8
NEWEST_MINOR = 30
LIBRARIES = "/run/inspan/lib"
PROGRAM = "/run/inspan/main"
LDD_LIMIT_S = 10.0


@frozen(kw_only=True)
class GuestInterpreter:
    """An interpreter as it is seen inside.

    Attributes:
        python: The interpreter that commands may use inside; None: there is none of ours that they can.
        argv: How it is started, under a name that says nothing.
        mounts: What makes it visible there.
        links: Symbolic links there: name, target.
        env: What the agent's own process needs.
        command_env: What commands need to run `python`.
        same_version: Whether it understands the code objects of this process.
    """

    python: str | None
    argv: tuple[str, ...] = (NEUTRAL_NAME,)
    mounts: tuple[Mount, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    env: Mapping[str, str] = field(factory=dict)
    command_env: Mapping[str, str] = field(factory=dict)
    same_version: bool = True


def guest_interpreter(own: Interpreter, root: str) -> GuestInterpreter:
    """Return the interpreter for a sandbox over `root`.

    Args:
        own: What runs this process. The sandbox's agent runs on it too: in place when the sandbox shows it,
            else mounted read-only.
        root: ``"host"``, or a folder with a root file system: its own Python 3.8 or newer is preferred;
            where it has none, `own` is mounted together with the libraries that it needs.

    Raises:
        SandboxCreateError: The needed libraries cannot be found.
    """
    if root != "host":
        return _of_tree(root) or _with_libraries(own)
    prefixes = tuple(one.rstrip("/") for one in VISIBLE)
    if own.path.startswith(VISIBLE) and own.prefix.startswith(prefixes):
        return GuestInterpreter(python=own.path, links=((NEUTRAL_NAME, own.path),))
    inside = _inside(own, own.path)
    # One that is built as a shared library looks for it where it was installed, which is hidden.
    library = {"LD_LIBRARY_PATH": os.path.join(OWN_FOLDER, "lib")} if _is_shared(own) else {}
    of_system = _of_system()
    return GuestInterpreter(
        python=of_system or inside,
        mounts=(Mount(source=own.prefix, target=OWN_FOLDER),),
        links=((NEUTRAL_NAME, inside),),
        env=library,
        command_env={} if of_system else library,
    )


def _is_shared(own: Interpreter) -> bool:
    return any(name.startswith("libpython") and ".so" in name for name in os.listdir(f"{own.prefix}/lib"))


def _of_system() -> str | None:
    """Return the Python that a sandbox over the host's root shows anyway."""
    for name in ("/usr/bin/python3", "/usr/local/bin/python3"):
        path = os.path.realpath(name)
        minor = os.path.basename(path).removeprefix("python3.")
        if (
            path.startswith("/usr/")
            and minor.isdigit()
            and int(minor) >= OLDEST_MINOR
            and os.access(path, os.X_OK)
        ):
            return path
    return None


def _of_tree(root: str) -> GuestInterpreter | None:
    for folder in ("usr/bin", "usr/local/bin", "bin", "opt/python/bin"):
        for minor in range(NEWEST_MINOR, OLDEST_MINOR - 1, -1):
            path = f"{folder}/python3.{minor}"
            if os.path.lexists(os.path.join(root, path)):
                return GuestInterpreter(
                    python=f"/{path}", links=((NEUTRAL_NAME, f"/{path}"),), same_version=False
                )
    return None


def _with_libraries(own: Interpreter) -> GuestInterpreter:
    """Start the interpreter by the host's own dynamic loader: the tree may have another libc, or none."""
    libraries = _libraries([own.path, *_extension("_ctypes")])
    loader = next((path for path in libraries if os.path.basename(path).startswith("ld")), None)
    if loader is None:
        raise SandboxCreateError(f"the dynamic loader of {own.path} was not found; give a root with a Python")
    folders = {os.path.dirname(os.path.realpath(os.__file__))}
    folders |= {os.path.dirname(os.path.dirname(one)) for one in _extension("_ctypes")}
    shown = [Mount(source=one, target=_inside(own, one)) for one in (own.path, *sorted(folders))]
    shown += [Mount(source=one, target=f"{LIBRARIES}/{os.path.basename(one)}") for one in libraries]
    inside = _inside(own, own.path)
    return GuestInterpreter(
        python=None,
        argv=(NEUTRAL_NAME, "--library-path", LIBRARIES, PROGRAM),
        mounts=tuple(shown),
        links=((NEUTRAL_NAME, f"{LIBRARIES}/{os.path.basename(loader)}"), (PROGRAM, inside)),
    )


def _extension(name: str) -> list[str]:
    """Return the file of an extension module; none when it is built in."""
    spec = importlib.util.find_spec(name)
    return (
        [spec.origin] if spec is not None and spec.origin is not None and os.path.isabs(spec.origin) else []
    )


def _inside(own: Interpreter, path: str) -> str:
    return os.path.join(OWN_FOLDER, os.path.relpath(path, own.prefix))


def _libraries(programs: Sequence[str]) -> list[str]:
    """Return the shared libraries of programs, the loader among them, as `ldd` tells."""
    try:
        run = subprocess.run(
            ["ldd", *programs], capture_output=True, text=True, timeout=LDD_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxCreateError(f"the libraries of {programs[0]} cannot be found: {error}") from error
    # "libc.so.6 => /lib/libc.so.6 (0x...)", or "/lib64/ld-linux-x86-64.so.2 (0x...)".
    words = [word for line in run.stdout.splitlines() for word in line.split() if "(0x" in line]
    return sorted({word for word in words if word.startswith("/")})
