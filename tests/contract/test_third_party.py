"""A plugin that somebody else writes: made, built and installed outside of the repository, and run there."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.registry, pytest.mark.timeout(600)]
CLIENT_SETTINGS = (
    "PIP_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_", "REQUESTS_",
)  # fmt: skip
"""What package clients read, and nothing else, is passed on."""


def run(*command, cwd, timeout_s=300):
    """Run in an environment that knows nothing of this checkout."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(CLIENT_SETTINGS)}
    base = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "LANG": "C.UTF-8"}
    ended = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**base, **kept},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    return ended.stdout


@pytest.fixture(scope="module")
def stranger(tmp_path_factory, root):
    """A folder outside of the repository with an environment that has inspan's wheels and `my-agent`'s."""
    folder = tmp_path_factory.mktemp("stranger")
    wheel = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder / "wheels"]
    for project in ("core", "supervisor", "server", "plugins/echo"):
        run(*wheel, root / project, cwd=folder)
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    pip = [folder / "venv/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    constraints = ["--constraint", root / "constraints.txt"]
    run(*pip, *constraints, *sorted((folder / "wheels").glob("*.whl")), "pytest", cwd=folder)
    run(folder / "venv/bin/inspan", "harness", "new", "my-agent", cwd=folder)
    run(*wheel, folder / "inspan-my-agent", cwd=folder)
    # What it depends on is there already: nothing is asked of a registry.
    mine = next((folder / "wheels").glob("inspan_my_agent-*.whl"))
    run(*pip, "--no-index", "--find-links", folder / "wheels", mine, cwd=folder)
    return folder


def test_it_is_found_beside_the_others(stranger):
    told = json.loads(run(stranger / "venv/bin/inspan", "harness", "list", "--json", cwd=stranger))
    assert [each["name"] for each in told["harnesses"]] == ["echo", "my-agent"]
    assert told["broken"] == []


def test_it_runs_an_episode(stranger):
    command = [stranger / "venv/bin/inspan", "demo", "--harness", "my-agent", "--sandbox", "local", "--json"]
    episode = json.loads(run(*command, cwd=stranger, timeout_s=120))
    assert (episode["reward"], episode["outcome"]) == (1.0, "completed")
    assert episode["versions"]["harness"]["name"] == "my-agent"
    assert episode["receipt"]["cleanup_confirmed"] is True


@pytest.mark.full
def test_its_own_tests_pass_where_it_is_installed(stranger):
    python = stranger / "venv/bin/python"
    said = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=stranger / "inspan-my-agent")
    assert " passed" in said
    assert "skipped" not in said
