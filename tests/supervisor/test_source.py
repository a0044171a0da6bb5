"""The one file: standard library only, Python 3.8, and run for real by every interpreter that is here."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import inspan_supervisor
from inspan_core.receipts import REASONS
from inspan_supervisor import supervisor_source

SOURCE = supervisor_source().decode()


def interpreters():
    """Every CPython from 3.8 on that can be found: on PATH, beside this one, and in a version manager."""
    names = ["python3", *(f"python3.{minor}" for minor in range(8, 16))]
    found = [sys.executable, *(path for name in names if (path := shutil.which(name)))]
    found += map(str, Path(sys.base_prefix).parent.glob("*/bin/python3"))
    real = {}
    for path in found:
        argv = [path, "-I", "-S", "-c", "import sys; print(sys.executable, *sys.version_info[:2])"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
        if done.returncode == 0:
            executable, major, minor = done.stdout.rsplit(maxsplit=2)
            if (int(major), int(minor)) >= (3, 8):
                real[os.path.realpath(executable)] = f"{major}.{minor}"
    return sorted(real)


@pytest.mark.parametrize("python", interpreters())
def test_it_supervises_a_natural_end_and_a_stop(make_supervised, python):
    natural = make_supervised(python=python)
    natural.run(
        "(setsid sh -c ': > $WORK/up; exec sleep 1000' &); while [ ! -e $WORK/up ]; do :; done; exit 3"
    )
    assert natural.receipt()["return_code"] == 3
    assert len(natural.reported("unfinished") | natural.reported("preserved")) == 1
    stopped = make_supervised(python=python)
    stopped.run("setsid sh -c 'sleep 1000 & sleep 1000 & : > $WORK/up; wait' & wait")
    stopped.wait_file("up")
    stopped.stop()
    receipt = stopped.receipt()
    assert (receipt["cleanup_confirmed"], receipt["return_code"], receipt["error"]) == (True, -15, None)
    assert len(stopped.report()["killed"]) == 3
    assert stopped.living() == set()


def test_its_syntax_is_that_of_python_3_8():
    ast.parse(SOURCE, feature_version=(3, 8))


def test_it_imports_only_the_standard_library():
    imported = set()
    for node in ast.walk(ast.parse(SOURCE)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module.partition(".")[0])
    assert imported <= sys.stdlib_module_names


def test_the_controller_and_the_file_use_the_same_names():
    used = set(re.findall(r'["/]([a-z_]+\.(?:json|claim|pid|request|log))"', SOURCE))
    names = {value for name, value in vars(inspan_supervisor).items() if name.endswith("_FILE")}
    assert used == names - {"process_supervisor.py"}
    assert f'"{inspan_supervisor.RETIRED_SUFFIX}"' in SOURCE


def test_the_reasons_that_it_gives_are_those_that_are_believed_and_told(request):
    given = {
        node.value
        for node in ast.walk(ast.parse(SOURCE))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    page = (request.config.rootpath / "docs" / "termination.md").read_text()
    for reason in REASONS:
        assert reason in given, reason
        assert f"`{reason}`" in page, reason
    assert 'f"below {child.pid}"' in SOURCE


def test_it_can_be_read_in_one_sitting():
    assert len(SOURCE.splitlines()) < 600
