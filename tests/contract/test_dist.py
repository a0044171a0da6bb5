"""The wheels: built from the folders, installed into an empty environment elsewhere, and run from there."""

import json
import os
import subprocess
import sys
import zipfile

import pytest

pytestmark = [pytest.mark.registry, pytest.mark.timeout(600)]
CLIENT_SETTINGS = (
    "PIP_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_", "REQUESTS_",
)  # fmt: skip
"""What package clients read, and nothing else, is passed on."""


def run(*command, cwd, timeout_s=300, **env):
    """Run in an environment that knows nothing of this checkout."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(CLIENT_SETTINGS)}
    base = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "LANG": "C.UTF-8"}
    ended = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**base, **kept, **env},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    return ended.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory, projects):
    """Every distribution as a wheel."""
    folder = tmp_path_factory.mktemp("dist")
    for project in projects:
        command = [
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            "--wheel",
            "--outdir",
            folder,
            project.parent,
        ]
        run(*command, cwd=folder)
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory, wheels, root):
    """An empty environment outside the repository, with the wheels and what they require."""
    folder = tmp_path_factory.mktemp("elsewhere")
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    command = [folder / "venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*command, "--constraint", root / "constraints.txt", *wheels, cwd=folder, timeout_s=500)
    return folder


def test_a_wheel_holds_its_package_and_nothing_of_the_tests(wheels, projects):
    assert len(wheels) == len(projects)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
        folders = {name.partition("/")[0] for name in names}
        assert all(folder.startswith("inspan_") for folder in folders), wheel.name
        assert any(name.endswith("/py.typed") for name in names), wheel.name
        assert not any("/tests/" in name or "__pycache__" in name for name in names), wheel.name


def test_what_runs_in_a_sandbox_is_in_the_wheels(wheels):
    names = set()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names.update(archive.namelist())
    for needed in (
        "inspan_supervisor/process_supervisor.py",
        "inspan_echo/sandbox_runner.py",
        "inspan_pi/sandbox_runner.py",
        "inspan_codex/sandbox_runner.py",
        "inspan_core/shim.py",
        "inspan_runtime/install_unpacker.py",
    ):
        assert needed in names


def test_the_echo_episode_runs_from_there(elsewhere):
    command = [elsewhere / "venv/bin/inspan", "demo", "--harness", "echo", "--sandbox", "local", "--json"]
    episode = json.loads(run(*command, cwd=elsewhere, timeout_s=120))
    assert (episode["reward"], episode["outcome"]) == (1.0, "completed")
    assert episode["receipt"]["cleanup_confirmed"] is True
    assert len(episode["model_calls"]) > 1


def test_the_plugins_are_found_there_and_none_is_broken(elsewhere):
    script = (
        "import json; from inspan_core import load_plugins; plugins = load_plugins();"
        "print(json.dumps([plugins.harness_names(), [str(each) for each in plugins.problems]]))"
    )
    names, problems = json.loads(run(elsewhere / "venv/bin/python", "-c", script, cwd=elsewhere))
    assert set(names) >= {"echo", "pi", "codex"}
    assert problems == []


def test_the_core_alone_needs_neither_a_loop_nor_a_web_framework(tmp_path, wheels, root):
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    (core,) = [wheel for wheel in wheels if wheel.name.startswith("inspan_core-")]
    python = tmp_path / "venv/bin/python"
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*command, "--constraint", root / "constraints.txt", core, cwd=tmp_path)
    installed = json.loads(run(python, "-m", "pip", "list", "--format", "json", cwd=tmp_path))
    names = {each["name"].lower() for each in installed} - {"pip", "setuptools"}
    assert names == {"inspan-core", "attrs", "cattrs", "pluggy", "typing_extensions"}
    run(python, "-c", "import inspan_core; inspan_core.load_plugins()", cwd=tmp_path)
