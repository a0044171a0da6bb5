"""The pinned runtime: `hermes-agent[mcp]` with all it needs, put together on the host for a sandbox's Python.

Source: the wheels that `pinned/constraints.txt` names with their digests; pip takes no others, and builds
nothing. They lie in one folder that only the shim puts on its path: nothing is installed into any
interpreter, and nothing is downloaded inside the sandbox.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from functools import cache
from importlib import resources
from pathlib import Path

from inspan_core.errors import InstallError, UnsupportedTarget
from inspan_core.harness import BuildFolder, HarnessContext, RuntimeKey, Target
from inspan_hermes.declaration import HERMES_VERSION
from inspan_hermes.interpreter import Interpreter, find_interpreter

OLDEST_GLIBC = (2, 28)
ARCHITECTURES = ("x86_64", "aarch64")
# Tags of wheels that run on such a system, newest first: pip takes what it is told literally.
PLATFORMS = {
    "glibc": (
        *(f"manylinux_2_{minor}_{{arch}}" for minor in (28, 27, 26, 24, 17, 12, 5)),
        "manylinux2014_{arch}",
        "manylinux2010_{arch}",
        "manylinux1_{arch}",
    ),
    "musl": tuple(f"musllinux_1_{minor}_{{arch}}" for minor in (2, 1, 0)),
}
PIP_TIMEOUT_S = 900.0
COMPILE_TIMEOUT_S = 300.0
_HEALTH = (
    "import sys; sys.path.insert(0, sys.argv[1] + '/site'); import run_agent, hermes_cli, tools.mcp_tool; "
    "print('hermes', hermes_cli.__version__ if tools.mcp_tool._MCP_AVAILABLE else 'without mcp')"
)
EXPECTED = f"hermes {HERMES_VERSION}"


async def install(context: HarnessContext) -> dict[str, str]:
    """Make the runtime ready; returns its prefix and the interpreter that it is for.

    Raises:
        UnsupportedTarget: There is no fitting interpreter, or no wheels for the system.
        InstallError: It could not be built, or does not run there.
    """
    installer = context.installer
    target = await installer.target()
    interpreter = await find_interpreter(context.sandbox)
    key = runtime_key(target, interpreter)
    health = (
        # A home that is not there: without one it would be made below HOME.
        "env",
        f"HERMES_HOME={context.session_dir}/check",
        interpreter.path,
        "-I",
        "-S",
        "-B",
        "-c",
        _HEALTH,
        "{prefix}",
    )
    prefix = installer.prefix(key)
    if not await installer.healthy(prefix, health=health, expect=EXPECTED):
        archive = await installer.archive(key, lambda folder: build(folder, key, interpreter))
        prefix = await installer.publish(key, archive, health=health, expect=EXPECTED)
    return {"prefix": prefix, "python": interpreter.path, "hermes": HERMES_VERSION}


def runtime_key(target: Target, interpreter: Interpreter) -> RuntimeKey:
    """The archive that fits; its version changes with anything that the archive is made from.

    Raises:
        UnsupportedTarget: Names what was found and what is supported.
    """
    libc = "glibc" if target.libc == "unknown" else target.libc
    if target.os != "linux" or target.arch not in ARCHITECTURES or libc not in PLATFORMS:
        raise UnsupportedTarget(
            f"hermes {HERMES_VERSION} has no runtime for {target.os} {target.arch} {target.libc}; supported: "
            "linux on x86_64 or aarch64, with glibc >= 2.28 or musl"
        )
    if libc == "glibc" and target.libc_version is not None and _version(target.libc_version) < OLDEST_GLIBC:
        raise UnsupportedTarget(f"hermes {HERMES_VERSION} needs glibc >= 2.28, found {target.libc_version}")
    return RuntimeKey(
        harness="hermes",
        version=f"{HERMES_VERSION}-py{interpreter.minor}-{_recipe()}",
        os=target.os,
        arch=target.arch,
        libc=libc,
    )


async def build(folder: BuildFolder, key: RuntimeKey, interpreter: Interpreter) -> None:
    """Fill `folder` with the runtime for `key`."""
    site = Path(folder.path) / "site"
    pins = Path(folder.path) / "constraints.txt"
    pins.write_bytes(_pins())
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-cache-dir",
        "--no-compile",
    ]
    command += ["--only-binary=:all:", "--require-hashes", "--disable-pip-version-check"]
    command += ["--target", str(site), "--implementation", "cp", "--python-version", interpreter.minor]
    for platform in PLATFORMS[key.libc]:
        command += ["--platform", platform.format(arch=key.arch)]
    await folder.run([*command, "-r", str(pins)], cwd=folder.path, env={}, timeout_s=PIP_TIMEOUT_S)
    if not (site / "run_agent.py").is_file():
        raise InstallError(f"hermes-agent {HERMES_VERSION} has no run_agent.py: not the pinned package")
    # Scripts whose first line names an interpreter of this host.
    shutil.rmtree(site / "bin", ignore_errors=True)
    python = await _same_python(folder, interpreter.minor)
    if python is not None:
        # Compiling costs seconds at each start; by content, since the archive's times mean nothing.
        await folder.run(
            [python, "-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(site)],
            cwd=folder.path,
            env={},
            timeout_s=COMPILE_TIMEOUT_S,
        )


async def _same_python(folder: BuildFolder, minor: str) -> str | None:
    """An interpreter of this host that compiles for `minor`; without one the sandbox compiles."""
    if minor == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return sys.executable
    found = shutil.which(f"python{minor}")
    if found is None:
        return None
    check = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != {minor!r})"
    try:
        await folder.run([found, "-I", "-S", "-c", check], cwd=folder.path, env={}, timeout_s=60.0)
    except InstallError:
        # A version manager's shim, for example, that has no such version switched on.
        return None
    return found


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def _pins() -> bytes:
    return resources.files("inspan_hermes").joinpath("pinned", "constraints.txt").read_bytes()


@cache
def _recipe() -> str:
    """A short digest of what the archive is made from, this file included."""
    return hashlib.sha256(Path(__file__).read_bytes() + _pins()).hexdigest()[:8]
