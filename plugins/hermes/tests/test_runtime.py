"""Which interpreter and archive fit a sandbox, and what is said when none does."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import resources

import pytest

from inspan_core.errors import UnsupportedTarget
from inspan_core.harness import Target
from inspan_hermes.declaration import HERMES_VERSION
from inspan_hermes.interpreter import SCRIPT, Interpreter, read_interpreter
from inspan_hermes.runtime import _same_python, runtime_key
from inspan_runtime.install_build import HostBuildFolder


@pytest.fixture
def anyio_backend():
    return "asyncio"


PYTHON = Interpreter(path="/usr/bin/python3", minor="3.11")


def target(**changes):
    return Target(**{"os": "linux", "arch": "x86_64", "libc": "glibc", "libc_version": "2.36", **changes})


def probe(*candidates):
    done = subprocess.run(
        ["sh", "-c", SCRIPT, "sh", *candidates],
        env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout


def test_the_probe_finds_this_interpreter_and_leaves_what_is_none(tmp_path):
    liar = tmp_path / "python3"
    liar.write_text("#!/bin/sh\necho nothing\n")
    liar.chmod(0o755)
    found = read_interpreter(probe(str(liar), "/nonexistent/python3", sys.executable))
    assert found.minor == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert found.path.startswith("/")


def test_the_first_that_fits_is_taken():
    output = "seen=/usr/bin/python3|3.9.2\nseen=/usr/bin/python3.12|3.12.1\nfits=/usr/bin/python3.12|3.12.1\n"
    assert read_interpreter(output) == Interpreter(path="/usr/bin/python3.12", minor="3.12")


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("", "found: none"),
        ("seen=/usr/bin/python3|3.9.2\n", r"found: 3\.9\.2 at /usr/bin/python3"),
        ("seen=/a|3.14.0\nseen=/b|3.8.1\n\n", r"found: 3\.14\.0 at /a, 3\.8\.1 at /b"),
    ],
)
def test_where_none_fits_it_is_said_what_was_found_and_what_is_supported(output, found):
    with pytest.raises(UnsupportedTarget, match=rf"3\.11 to 3\.13.*{found}.*supported"):
        read_interpreter(output)


def test_each_kind_of_system_has_an_archive_of_its_own():
    keys = {
        str(runtime_key(target(**changes), Interpreter(path="/p", minor=minor)))
        for changes in ({}, {"arch": "aarch64"}, {"libc": "musl", "libc_version": None})
        for minor in ("3.11", "3.12", "3.13")
    }
    assert len(keys) == 9
    assert all(key.startswith(f"hermes-{HERMES_VERSION}-py3.1") for key in keys)
    assert runtime_key(target(libc="unknown", libc_version=None), PYTHON) == runtime_key(target(), PYTHON)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"os": "darwin"}, "darwin x86_64"),
        ({"arch": "riscv64"}, "riscv64"),
        ({"libc_version": "2.17"}, "found 2.17"),
    ],
)
def test_a_system_without_wheels_is_named(changes, said):
    with pytest.raises(UnsupportedTarget, match=said):
        runtime_key(target(**changes), PYTHON)


def test_every_package_is_pinned_by_version_and_digest():
    text = resources.files("inspan_hermes").joinpath("pinned", "constraints.txt").read_text()
    lines = [line for line in text.replace("\\\n", "").splitlines() if not line.startswith("#")]
    pinned = re.compile(r"[a-z0-9-]+==[0-9a-z.]+(\s+--hash=sha256:[0-9a-f]{64})+")
    assert [line for line in lines if not pinned.fullmatch(line)] == []
    names = {line.partition("==")[0]: line.split()[0].partition("==")[2] for line in lines}
    assert (names["hermes-agent"], "mcp" in names, len(names)) == (HERMES_VERSION, True, 70)


@pytest.mark.anyio
async def test_what_compiles_is_an_interpreter_of_that_very_version(tmp_path, monkeypatch):
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (tmp_path / "build").mkdir()
    folder = HostBuildFolder(tmp_path / "build", client_env={"PATH": "/usr/bin:/bin"})
    assert await _same_python(folder, own) == sys.executable
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await _same_python(folder, "3.99") is None
    candidate = tmp_path / "python3.99"
    for code, found in ((0, str(candidate)), (127, None)):
        candidate.write_text(f"#!/bin/sh\nexit {code}\n")
        candidate.chmod(0o755)
        assert await _same_python(folder, "3.99") == found
