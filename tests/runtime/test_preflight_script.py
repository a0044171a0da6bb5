"""The preflight's script in this host's own shell: interpreters, and where runtimes can live."""

from __future__ import annotations

import os
import stat
import subprocess

import pytest

from inspan_core.harness import Target
from inspan_runtime.install_unpacker import MARKER
from inspan_runtime.preflight import Facts, read_facts
from inspan_runtime.preflight_script import MOST_READY, PYTHON_CANDIDATES, PYTHON_CHECK, preflight_script

LIMIT_S = 50
NO_PLACE = """
mount -t tmpfs -o noexec none "$1" && mkdir "$2/ro" && mount -t tmpfs -o ro none "$2/ro" || exit 99
mkdir "$2/full" && mount -t tmpfs -o size=4k none "$2/full" && : >"$2/full/one" || exit 98
head -c 4096 /dev/zero >"$2/full/one" || exit 97
exec /bin/sh -c "$3"
"""


def script_of(roots=(), workdir="/nowhere", pythons=PYTHON_CANDIDATES, places=()):
    return preflight_script(
        places=[str(one) for one in places],
        roots=[str(one) for one in roots],
        workdir=str(workdir),
        programs=(),
        shells=(),
        certificates=(),
        pythons=[str(one) for one in pythons],
    )


def ran(argv, **env):
    done = subprocess.run(
        argv, env={"PATH": os.defpath, **env}, capture_output=True, timeout=LIMIT_S, check=True
    )
    return read_facts(done.stdout, 0.0, ())


def facts_of(home="/nowhere-else", path=os.defpath, **asked):
    return ran(["/bin/sh", "-c", script_of(**asked)], HOME=str(home), PATH=path)


def test_hooks_see_the_same_as_a_target():
    facts = Facts(
        os="linux",
        arch="x86_64",
        libc="none",
        libc_version=None,
        user=0,
        shells={},
        python="/usr/bin/python3",
        python_version="3.11.2",
        programs={},
        certificates=None,
        places=(),
        clock_skew_s=None,
        images=(),
    )
    assert facts.target == Target(
        os="linux", arch="x86_64", libc="unknown", python="/usr/bin/python3", python_version="3.11.2"
    )
    assert (facts.root, facts.tried) == (None, "nothing was tried")


def test_a_shim_is_answered_by_the_interpreter_behind_it(tmp_path):
    real = os.path.realpath("/proc/self/exe")
    shim = tmp_path / "bin" / "python3"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    shim.chmod(0o755)
    found = facts_of(path=f"{shim.parent}:{os.defpath}", pythons=["/no/such/python", "python3"])
    assert found.python is not None and found.python_version.startswith("3.")
    with open(found.python, "rb") as program:
        assert program.read(4) == b"\x7fELF"


def test_an_interpreter_that_lacks_modules_or_is_too_old_is_passed_over(tmp_path):
    for name, answer in (("old", "exit 9"), ("bare", "exit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / name).chmod(0o755)
    passed_over = [tmp_path / "old", tmp_path / "bare"]
    assert facts_of(pythons=passed_over).python is None
    assert facts_of(pythons=[*passed_over, os.path.realpath("/proc/self/exe")]).python is not None
    said = subprocess.run(["python3", "-I", "-S", "-c", PYTHON_CHECK], capture_output=True, timeout=LIMIT_S)
    assert said.stdout.count(b"|") == 1


def test_the_home_the_workdir_and_a_link_are_no_place_for_runtimes(tmp_path):
    home, workdir = tmp_path / "home", tmp_path / "task"
    for one in (home, workdir, tmp_path / "elsewhere"):
        one.mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    refused = [home / "r", workdir / "r", tmp_path / "link"]
    found = facts_of(home=home, workdir=workdir, roots=[*refused, tmp_path / "fine", tmp_path / "more"])
    assert found.root == str(tmp_path / "fine")
    assert found.tried == "; ".join(
        (f"{home}/r inside HOME", f"{workdir}/r inside the workdir", f"{tmp_path}/link is a link")
    )
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "home", "link", "task"], "a look leaves nothing"
    assert os.listdir(home) == os.listdir(workdir) == []
    assert stat.S_ISDIR(os.stat(home).st_mode)


def test_below_a_file_is_no_place(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    found = facts_of(places=[tmp_path / "file" / "s", tmp_path / "dangling" / "s"])
    assert [one.fault for one in found.places] == [
        f"{tmp_path}/{name}/s lies below {tmp_path}/{name}, which is no folder"
        for name in ("file", "dangling")
    ]


def test_a_workdir_that_is_everything_leaves_a_place(tmp_path):
    assert facts_of(workdir="/", roots=[tmp_path / "r"]).root == str(tmp_path / "r")


def test_what_the_workdir_is(tmp_path):
    (tmp_path / "file").touch()
    kinds = [facts_of(workdir=tmp_path / one).workdir for one in (".", "file", "none")]
    assert kinds == ["folder", "file", "missing"]


def test_a_noexec_a_read_only_and_a_full_folder_are_passed_over(tmp_path):
    noexec, kept, fine = (tmp_path / name for name in ("noexec", "kept", "fine"))
    for place in (noexec, kept, fine):
        place.mkdir()
    script = script_of(roots=[noexec, kept / "ro", kept / "full", fine], places=[noexec / "deep" / "er"])
    unshare = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",))]
    found = ran([*unshare, "sh", "-c", NO_PLACE, "sh", str(noexec), str(kept), script], HOME="/nowhere-else")
    assert found.root == str(fine)
    assert found.tried == "; ".join(
        (
            f"programs do not run from {noexec}",
            f"{kept}/ro cannot be written to",
            f"{kept}/full cannot be written to: no space is left",
        )
    )
    (place,) = found.places
    assert (place.tried, place.writes, place.runs) == (str(noexec), True, False)


def test_runtimes_that_are_there_are_told(tmp_path):
    for name in ("b-2", "a-1"):
        (tmp_path / "r" / name).mkdir(parents=True)
        (tmp_path / "r" / name / MARKER).touch()
    (tmp_path / "r" / "half").mkdir()
    found = facts_of(roots=[tmp_path / "none", tmp_path / "r"])
    assert found.ready == (str(tmp_path / "r" / "a-1"), str(tmp_path / "r" / "b-2"))
    assert found.word is None


def test_a_task_with_thousands_of_folders_there_does_not_hide_the_rest(tmp_path):
    for number in range(3 * MOST_READY):
        (tmp_path / "r" / f"k{number}").mkdir(parents=True)
        (tmp_path / "r" / f"k{number}" / MARKER).touch()
    found = facts_of(roots=[tmp_path / "r"])
    assert len(found.ready) == MOST_READY and found.os == "linux"


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_names_with_odd_characters_are_told_or_unknown(tmp_path, shell):
    """What JSON would have to escape is null; a folder of another script is told as its bytes."""
    argv = [shell, "sh"] if shell == "busybox" else [shell]
    odd = [tmp_path / "it's #1 (%~$)", tmp_path / "\N{SNOWMAN}", os.fsdecode(bytes(tmp_path) + b"/\xff")]
    for root in odd:
        (tmp_path / root / "k").mkdir(parents=True)
        (tmp_path / root / "k" / MARKER).touch()
    unknown = tmp_path / 'a"b'
    (unknown / "k").mkdir(parents=True)
    (unknown / "k" / MARKER).touch()
    try:
        found = ran([*argv, "-c", script_of(roots=[*odd, unknown], pythons=())], HOME="/nowhere-else")
    except FileNotFoundError:
        pytest.skip(f"NO {shell.upper()} HERE")
    assert found.ready == tuple(f"{one}/k" for one in odd)
    assert found.root == str(odd[0])
