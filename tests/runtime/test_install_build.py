"""Host builds: what commands see, how they end, and what a wheel may hold."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import sys
import tarfile
import zipfile
from pathlib import Path

import anyio
import pytest

from inspan_core.errors import InstallError
from inspan_runtime.install_build import (
    HostBuildFolder,
    npm_integrity,
    package_client_env,
    unpack_tgz,
    unpack_zip,
)
from inspan_runtime.testing.processes import lives

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def folder(tmp_path):
    private = tmp_path / "private"
    private.mkdir()
    return HostBuildFolder(private, client_env={"PATH": os.environ["PATH"], "PIP_NO_INPUT": "1"})


async def test_a_command_sees_no_secret_of_the_server(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("CANARY_SECRET", "do not show")
    output = await folder.run(["env"], cwd=str(tmp_path), env={"EXTRA": "yes"}, timeout_s=20)
    names = {line.partition("=")[0] for line in output.splitlines()}
    assert names == {"PATH", "PIP_NO_INPUT", "HOME", "npm_config_cache", "EXTRA"}


async def test_a_failed_command_keeps_command_exit_code_and_output(folder, tmp_path):
    with pytest.raises(InstallError) as caught:
        await folder.run(["sh", "-c", "echo why; exit 5"], cwd=str(tmp_path), env={}, timeout_s=20)
    assert (caught.value.exit_code, caught.value.output.strip()) == (5, "why")
    assert "exit 5" in str(caught.value.command)


async def test_a_command_that_is_not_there_is_an_install_error(folder, tmp_path):
    with pytest.raises(InstallError, match="did not start"):
        await folder.run(["/no/such/program"], cwd=str(tmp_path), env={}, timeout_s=20)


async def test_a_command_past_its_time_is_killed_with_its_children(folder, tmp_path):
    pid_file = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {pid_file}; wait"
    with pytest.raises(InstallError, match="took longer"):
        await folder.run(["sh", "-c", script], cwd=str(tmp_path), env={}, timeout_s=1)
    pid = int(pid_file.read_text())
    with anyio.fail_after(20):
        while lives(pid):
            await anyio.sleep(0.01)


async def test_output_without_end_is_kept_only_as_a_tail(folder, tmp_path):
    script = "import sys; [sys.stdout.write('x' * 999 + '\\n') for _ in range(2000)]; print('last')"
    output = await folder.run([sys.executable, "-c", script], cwd=str(tmp_path), env={}, timeout_s=50)
    assert output.endswith("last\n")
    assert len(output) <= 16 * 1024


def test_the_environment_of_package_clients_is_an_allow_list(tmp_path):
    (tmp_path / ".npmrc").write_text("fund=false\n")
    (tmp_path / ".config" / "pip").mkdir(parents=True)
    (tmp_path / ".config" / "pip" / "pip.conf").write_text("[global]\n")
    given = {
        "HOME": str(tmp_path),
        "PATH": "/bin",
        "https_proxy": "http://proxy:1",
        "SSL_CERT_FILE": "/c",
        "PIP_INDEX_URL": "file:///x",
        "npm_config_registry": "r",
        "AWS_SECRET_ACCESS_KEY": "no",
        "OPENAI_API_KEY": "no",
    }
    assert package_client_env(given) == {
        "PATH": "/bin",
        "https_proxy": "http://proxy:1",
        "SSL_CERT_FILE": "/c",
        "PIP_INDEX_URL": "file:///x",
        "npm_config_registry": "r",
        "PIP_CONFIG_FILE": str(tmp_path / ".config" / "pip" / "pip.conf"),
        "npm_config_userconfig": str(tmp_path / ".npmrc"),
    }


def make_wheel(path: Path) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        script = zipfile.ZipInfo("tiny_wheel/run")
        script.external_attr = (stat.S_IFREG | 0o755) << 16
        archive.writestr(script, "#!/bin/sh\necho ran\n")
        archive.writestr("tiny_wheel/data", "x")
        archive.writestr(
            "tiny_wheel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-wheel\nVersion: 1.0\n"
        )
        archive.writestr(
            "tiny_wheel-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny_wheel-1.0.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def test_a_wheel_is_fetched_with_pip_checked_and_unpacked_with_its_modes(tmp_path):
    links = tmp_path / "links"
    links.mkdir()
    digest = make_wheel(links / "tiny_wheel-1.0-py3-none-any.whl")
    private = tmp_path / "private"
    private.mkdir()
    env = {"PATH": os.environ["PATH"], "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links)}
    folder = HostBuildFolder(private, client_env=env)
    unpacked = Path(await folder.fetch_wheel("tiny-wheel==1.0", sha256=[digest], platforms=["any"]))
    assert os.access(unpacked / "tiny_wheel" / "run", os.X_OK)
    assert not os.access(unpacked / "tiny_wheel" / "data", os.X_OK)
    assert not str(unpacked).startswith(folder.path)
    with pytest.raises(InstallError, match="refused"):
        await folder.fetch_wheel("tiny-wheel==1.0", sha256=["0" * 64], platforms=["any"])
    with pytest.raises(InstallError) as caught:
        await folder.fetch_wheel("tiny-wheel==2.0", sha256=[digest], platforms=["any"])
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("name", ["../out", "/abs", "a/../../out"])
def test_a_zip_entry_that_leads_out_is_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "bad.whl", "w") as archive:
        archive.writestr(name, "x")
    with pytest.raises(InstallError, match="not a plain file inside"):
        unpack_zip(tmp_path / "bad.whl", tmp_path / "unpacked")
    assert not (tmp_path / "out").exists()


def tgz(path, *entries):
    """A package archive: entries are (name, content or None, type, mode)."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content, kind, mode in entries:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.size = kind, mode, len(content or b"")
            member.linkname = "elsewhere"
            archive.addfile(member, io.BytesIO(content or b""))
    return path


def test_a_package_is_unpacked_with_its_modes(tmp_path):
    source = tgz(
        tmp_path / "p.tgz",
        ("package", None, tarfile.DIRTYPE, 0o755),
        ("package/bin/program", b"run", tarfile.REGTYPE, 0o755),
        ("package/README.md", b"read", tarfile.REGTYPE, 0o664),
    )
    unpack_tgz(source, tmp_path / "out")
    program, readme = tmp_path / "out/package/bin/program", tmp_path / "out/package/README.md"
    assert (program.read_bytes(), stat.S_IMODE(program.stat().st_mode)) == (b"run", 0o755)
    assert (readme.read_bytes(), stat.S_IMODE(readme.stat().st_mode)) == (b"read", 0o644)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../out", tarfile.REGTYPE),
        ("/out", tarfile.REGTYPE),
        ("package/link", tarfile.SYMTYPE),
        ("package/hard", tarfile.LNKTYPE),
        ("package/pipe", tarfile.FIFOTYPE),
    ],
)
def test_a_package_cannot_reach_out(tmp_path, name, kind):
    source = tgz(tmp_path / "p.tgz", (name, b"", kind, 0o644))
    with pytest.raises(InstallError, match="not a plain file inside"):
        unpack_tgz(source, tmp_path / "into")
    assert [path.name for path in tmp_path.iterdir()] == ["p.tgz"]


@pytest.mark.parametrize("data", [b"", b"no archive", b"\x1f\x8b\x08\x00broken"])
def test_what_is_no_package_is_an_install_error(tmp_path, data):
    (tmp_path / "p.tgz").write_bytes(data)
    with pytest.raises(InstallError, match="is not a package archive"):
        unpack_tgz(tmp_path / "p.tgz", tmp_path / "into")


def test_the_digest_is_as_lockfiles_write_it(tmp_path):
    (tmp_path / "empty").touch()
    assert npm_integrity(tmp_path / "empty") == (
        "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg=="
    )


@pytest.mark.registry
@pytest.mark.full
@pytest.mark.timeout(300)
async def test_a_package_of_another_digest_is_refused(tmp_path):
    folder = HostBuildFolder(tmp_path, client_env=package_client_env(os.environ))
    refused = r"ms@2\.1\.3 has the digest sha512-.*, expected sha512-x: refused"
    with pytest.raises(InstallError, match=refused):
        await folder.fetch_npm_package("ms@2.1.3", integrity="sha512-x")
