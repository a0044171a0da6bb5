"""An interpreter that runs in any Linux image of this architecture: this process's, with its own libraries.

A folder with the loader, the executable, the shared libraries and the few modules that the agent imports is
made once in a cache folder and mounted read-only: the image needs no Python and no C library.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import py_compile
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from inspan_core.errors import ProviderUnavailable
from inspan_runtime.providers.docker import container_boot
from inspan_runtime.providers.interpreter import Interpreter

INSIDE = "/run/inspan/base"
LOADER = "init"
PROBE_LIMIT_S = 30.0
# How image architectures are called.
ARCHITECTURES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
    "riscv64": "riscv64",
}
_PROBE = """
import __future__, _signal, _socket, ctypes, encodings.ascii, encodings.latin_1, encodings.utf_8
import fcntl, marshal, os, posixpath, resource, select, stat, struct, sys, time, warnings
maps = [line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if line.count("/") > 1]
files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
print([sorted(sys.modules), [one for one in files if one], sorted(set(maps))])
"""
_NEEDED = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)


def own_architecture() -> str:
    """Return this machine's architecture, as images name it."""
    machine = platform.machine()
    return ARCHITECTURES.get(machine, machine)


def command_inside() -> list[str]:
    """Return the argv of a container's first process."""
    python = f"{INSIDE}/bin/{LOADER}"
    loader = [f"{INSIDE}/{LOADER}", "--library-path", f"{INSIDE}/lib"]
    return [*loader, python, "-I", "-S", "-E", f"{INSIDE}/boot.py"]


def portable_interpreter(own: Interpreter, folder: Path) -> Path:
    """Return the folder to mount, made if needed.

    Args:
        own: What runs this process.
        folder: Where it is made, below a name that tells its content's version.

    Raises:
        ProviderUnavailable: This interpreter cannot be taken apart; the message says why.
    """
    found = os.stat(own.path)
    boot = Path(container_boot.__file__).read_bytes()
    version = json.dumps([_PROBE, own.path, found.st_size, found.st_mtime_ns, sys.version]).encode()
    made = folder / hashlib.sha256(version + boot).hexdigest()[:16]
    if made.is_dir():
        return made
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    part = folder / f".new-{secrets.token_hex(8)}"
    try:
        _make(own, part)
        part.rename(made)
    except (OSError, subprocess.SubprocessError, ValueError, SyntaxError, py_compile.PyCompileError) as error:
        if not made.is_dir():  # Another process may have been first.
            raise ProviderUnavailable(f"the interpreter {own.path} cannot be mounted: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return made


def _make(own: Interpreter, part: Path) -> None:
    said = _output([own.path, "-I", "-S", "-E", "-c", _PROBE])
    names, files, maps = ast.literal_eval(said)
    loader = next((one for one in maps if os.path.basename(one).startswith("ld-")), None)
    if loader is None:
        raise ValueError("it is not dynamically linked")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library, extensions = part / "lib", part / "lib" / version / "lib-dynload"
    extensions.mkdir(parents=True)
    (part / "bin").mkdir()
    shutil.copy(loader, part / LOADER)
    shutil.copy(own.path, part / "bin" / LOADER)
    binaries = [own.path, *(one for one in files if one.endswith(".so"))]
    for one in binaries[1:]:
        shutil.copy(one, extensions)
    for binary in binaries:
        for name, path in _NEEDED.findall(_output([loader, "--list", binary])):
            if os.path.basename(path) != os.path.basename(loader):
                shutil.copy(os.path.realpath(path), library / os.path.basename(name))
    stdlib = Path(sysconfig.get_path("stdlib"))
    for name in names:
        _copy_module(stdlib, library / version, name)
    shutil.copy(container_boot.__file__, part / "boot.py")
    for path in (part, *part.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" or path.name == LOADER else 0o644)


def _copy_module(stdlib: Path, target: Path, name: str) -> None:
    """Copy a module of the standard library with its code; what is built in has no file."""
    relative = name.replace(".", "/")
    for candidate in (f"{relative}/__init__.py", f"{relative}.py"):
        source = stdlib / candidate
        if source.is_file():
            made = target / candidate
            made.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, made)
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(str(made), dfile=str(Path(candidate)), doraise=True, invalidation_mode=mode)
            return


def _output(argv: list[str]) -> str:
    run = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_LIMIT_S, check=True, env={}
    )
    return run.stdout.decode()
