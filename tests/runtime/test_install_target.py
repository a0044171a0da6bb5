"""Reading what a sandbox says of itself."""

from __future__ import annotations

import os
import stat
import subprocess

import pytest

from inspan_core.errors import UnsupportedTarget
from inspan_core.harness import Target
from inspan_runtime.install_target import MARKER, MOST_READY, PYTHON_CHECK, Probe, probe_script, read_probe

GLIBC = "os=Linux\narch=x86_64\nlibc_text=glibc 2.36\npython=/usr/bin/python3|3.11.2\nroot=/opt/r\n"


def test_a_glibc_system():
    assert read_probe(GLIBC) == Probe(
        target=Target(
            os="linux",
            arch="x86_64",
            libc="glibc",
            libc_version="2.36",
            python="/usr/bin/python3",
            python_version="3.11.2",
        ),
        root="/opt/r",
        tried="nothing was tried",
    )


@pytest.mark.parametrize(
    ("text", "libc", "version"),
    [
        ("glibc 2.17", "glibc", "2.17"),
        ("ldd (Debian GLIBC 2.31-13+deb11u5) 2.31", "glibc", "2.31"),
        ("ldd (GNU libc) 2.28", "glibc", "2.28"),
        ("musl libc (x86_64)", "musl", None),
        ("sh: ldd: not found", "unknown", None),
    ],
)
def test_libc_is_read_from_what_each_prints(text, libc, version):
    target = read_probe(f"os=Linux\narch=aarch64\nlibc_text={text}\n").target
    assert (target.libc, target.libc_version) == (libc, version)


def test_a_musl_loader_tells_when_nothing_else_does():
    output = "os=Linux\narch=x86_64\nlibc_text=\nmusl=/lib/ld-musl-x86_64.so.1\n"
    assert read_probe(output).target.libc == "musl"


def test_no_python_and_no_root_are_none_with_the_reasons():
    probe = read_probe(
        "os=Linux\narch=x86_64\ntried=/opt/x: cannot be made\ntried=/tmp/y: cannot be written\n"
    )
    assert (probe.target.python, probe.root) == (None, None)
    assert probe.tried == "/opt/x: cannot be made; /tmp/y: cannot be written"


@pytest.mark.parametrize("output", ["", "garbage", "os=\narch=\n", "sh: not found"])
def test_a_sandbox_without_a_shell_is_unsupported(output):
    with pytest.raises(UnsupportedTarget, match="POSIX shell"):
        read_probe(output)


@pytest.mark.parametrize(
    ("found", "meant"), [("amd64", "x86_64"), ("arm64", "aarch64"), ("riscv64", "riscv64")]
)
def test_other_names_of_an_architecture(found, meant):
    assert read_probe(f"os=Linux\narch={found}\n").target.arch == meant


def run_probe(tmp_path, path, roots):
    return subprocess.run(
        ["/bin/sh", "-c", probe_script(roots, "/nowhere")],
        env={"PATH": path, "HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    ).stdout


def test_a_shim_is_answered_by_the_interpreter_behind_it(tmp_path):
    real = os.path.realpath("/proc/self/exe")
    shim = tmp_path / "bin" / "python3"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    shim.chmod(0o755)
    script = probe_script([str(tmp_path / "r")], "/nowhere", ["/no/such/python", "python3"])
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        env={"PATH": f"{shim.parent}:{os.defpath}"},
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    python = read_probe(done.stdout).target.python
    assert python is not None
    with open(python, "rb") as program:
        assert program.read(4) == b"\x7fELF"


def test_an_interpreter_that_lacks_modules_or_is_too_old_is_passed_over(tmp_path):
    output = subprocess.run(
        ["sh", "-c", f"exec python3 -I -S -c {PYTHON_CHECK!r}"],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    ).stdout
    assert output.count("|") == 1


def test_the_home_and_a_link_are_no_place_for_runtimes(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    roots = [str(home / "r"), str(tmp_path / "link"), str(tmp_path / "fine")]
    probe = read_probe(run_probe(tmp_path, os.defpath, roots))
    assert probe.root == str(tmp_path / "fine")
    assert "inside HOME" in probe.tried
    assert "is a link" in probe.tried
    assert not (home / "r").exists()
    assert stat.S_ISDIR(os.stat(tmp_path / "fine").st_mode)
    assert os.listdir(tmp_path / "fine") == []


NO_PLACE = """
mount -t tmpfs -o noexec none "$1" && mkdir "$2/ro" && mount -t tmpfs -o ro none "$2/ro" || exit 99
exec /bin/sh -c "$3"
"""


def test_a_noexec_and_a_read_only_folder_are_passed_over(tmp_path):
    places = [tmp_path / name for name in ("noexec", "kept", "fine")]
    for place in places:
        place.mkdir()
    roots = [str(places[0]), str(places[1] / "ro"), str(places[2])]
    script = probe_script(roots, "/nowhere")
    unshare = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",))]
    done = subprocess.run(
        [*unshare, "sh", "-c", NO_PLACE, "sh", str(places[0]), str(places[1]), script],
        env={"PATH": os.environ["PATH"], "HOME": "/nowhere-else"},
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    probe = read_probe(done.stdout)
    assert probe.root == str(places[2])
    assert f"{places[0]}: programs do not run there" in probe.tried
    assert f"{places[1]}/ro: cannot be written" in probe.tried


def test_runtimes_that_are_there_and_the_hosts_word_are_told(tmp_path):
    for name in ("b-2", "a-1"):
        (tmp_path / "r" / name).mkdir(parents=True)
        (tmp_path / "r" / name / MARKER).touch()
    (tmp_path / "r" / "half").mkdir()
    probe = read_probe(run_probe(tmp_path, os.defpath, [str(tmp_path / "none"), str(tmp_path / "r")]))
    assert probe.ready == (str(tmp_path / "r" / "a-1"), str(tmp_path / "r" / "b-2"))
    assert probe.word is None
    assert read_probe("os=Linux\narch=x86_64\nword=abc\n").word == "abc"


def test_a_task_with_thousands_of_folders_there_does_not_hide_the_rest(tmp_path):
    for number in range(3 * MOST_READY):
        (tmp_path / "r" / f"k{number}").mkdir(parents=True)
        (tmp_path / "r" / f"k{number}" / MARKER).touch()
    probe = read_probe(run_probe(tmp_path, os.defpath, [str(tmp_path / "r")])[-64 * 1024 :])
    assert len(probe.ready) == MOST_READY
    assert probe.target.os == "linux"
