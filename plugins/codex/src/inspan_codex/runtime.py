"""The pinned runtime: the one static binary of the npm platform package, put together on the host.

Source: the npm package ``@openai/codex`` in its versions for one platform, for example
``0.171.0-linux-x64``. Of its 424 MB the binary alone is kept (315 MB): what lies beside it is for voice, for
Codex's own sandbox and for code mode, and its ``rg`` would be put before the task's PATH.
"""

from __future__ import annotations

import hashlib
import shutil
from functools import cache
from pathlib import Path

from inspan_codex.declaration import CODEX_VERSION
from inspan_core.errors import InstallError, UnsupportedTarget
from inspan_core.harness import BuildFolder, Installer, RuntimeKey, Target

# arch -> version suffix, folder inside, and digest of the package, as the registry's metadata of 0.171.0
# has it; that of linux-x64 was also computed from the archive.
PACKAGES = {
    "x86_64": (
        "linux-x64",
        "x86_64-unknown-linux-musl",
        "sha512-l66NZkQgdk2C3pbcfULDz42yEUB581MVA6I+Y43Wp4OIqEy73HCdmZ0GTjeAHY2ycuH4N00d9VsLrwT1jxshTw==",
    ),
    "aarch64": (
        "linux-arm64",
        "aarch64-unknown-linux-musl",
        "sha512-9z17t4bbUJ9UCIb49O4PoA+ki+45q3rd8nZ8PeH6sYnlKkBld/Xpo/OS3h3Ti954+foshX4o7k5TCU8N7zzqQA==",
    ),
}
# A name that no task matches by accident (`pkill codex`): it is what the kernel shows of the process.
PROGRAM = "bin/inspan-h"

HEALTH = (
    # A folder of its own, so that nothing appears below HOME.
    "env",
    "CODEX_HOME={prefix}",
    "{prefix}/" + PROGRAM,
    "--version",
)
EXPECTED = f"codex-cli {CODEX_VERSION}"


async def install(installer: Installer) -> dict[str, str]:
    """Make the runtime ready; returns its prefix and the sandbox's interpreter.

    Raises:
        UnsupportedTarget: No build fits, or there is no Python for the supervisor.
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
    if not await installer.healthy(prefix, health=HEALTH, expect=EXPECTED):
        archive = await installer.archive(key, lambda folder: build(folder, key))
        try:
            prefix = await installer.publish(key, archive, health=HEALTH, expect=EXPECTED)
        except InstallError as error:
            if error.exit_code in (126, 127) or "Exec format" in error.output:
                raise UnsupportedTarget(
                    f"codex {CODEX_VERSION} does not run in this sandbox ({target.arch}): "
                    f"{error.output.strip()[-500:]}; supported: linux on x86_64 or aarch64"
                ) from error
            raise
    return {"prefix": prefix, "python": target.python, "codex": CODEX_VERSION}


def runtime_key(target: Target) -> RuntimeKey:
    """The archive that fits `target`; its version changes with anything that the archive is made from.

    Raises:
        UnsupportedTarget: Names what was found and what is supported.
    """
    if target.os != "linux" or target.arch not in PACKAGES:
        raise UnsupportedTarget(
            f"codex {CODEX_VERSION} has no runtime for {target.os} {target.arch}; supported: linux on x86_64 "
            "or aarch64, with any libc"
        )
    return RuntimeKey(
        harness="codex",
        version=f"{CODEX_VERSION}-{_recipe()}",
        os=target.os,
        arch=target.arch,
        libc="any",
    )


async def build(folder: BuildFolder, key: RuntimeKey) -> None:
    """Fill `folder` with the runtime for `key`."""
    suffix, triple, integrity = PACKAGES[key.arch]
    spec = f"@openai/codex@{CODEX_VERSION}-{suffix}"
    package = Path(await folder.fetch_npm_package(spec, integrity=integrity)) / "package"
    binary = package / "vendor" / triple / "bin" / "codex"
    if not binary.is_file():
        raise InstallError(f"{spec} has no vendor/{triple}/bin/codex: not the pinned package")
    program = Path(folder.path) / PROGRAM
    program.parent.mkdir()
    shutil.move(binary, program)
    program.chmod(0o755)


@cache
def _recipe() -> str:
    """A short digest of what the archive is made from."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
