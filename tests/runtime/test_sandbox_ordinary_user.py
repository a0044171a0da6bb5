"""bubblewrap as an ordinary user, for real: a process of another user id makes the sandboxes."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

NOBODY = 65534
LIMIT_S = 150.0
# All of the contract that such a user can have; control groups are root's.
PROGRAM = """
import anyio, itertools, json, os, pathlib, sys
from inspan_core.errors import InspanError
from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider
from inspan_runtime.providers.docker.borrowed_ways import open_borrowed_way
from inspan_runtime.providers.docker.engine import Engine
from inspan_runtime.providers.interpreter import own_interpreter
from inspan_runtime.testing.sandbox_checks import checks_for, needs_of
folder, wanted = sys.argv[1], json.loads(sys.argv[2])
numbers = itertools.count()
def make_spec(**changes):
    return SandboxSpec(**{"workdir": f"/task/{next(numbers)}", "ttl_s": 120.0, **changes})
async def main():
    provider = BubblewrapProvider({"runtime_dir": folder + "/run"})
    failed, passed = {}, []
    for check in checks_for(provider):
        if "limits" in needs_of(check) or (wanted and check.__name__ not in wanted):
            continue
        try:
            await check(provider, make_spec)
            passed.append(check.__name__)
        except Exception as error:
            failed[check.__name__] = repr(error)
    refusals = {}
    for name, change in {"limits": {"pids": 30}, "root": {"root": "/usr"}}.items():
        try:
            await (await provider.create(make_spec(**change), key=name)).stop()
        except InspanError as error:
            refusals[name] = f"{type(error).__name__}: {error}"
    with open(folder + "/engine", "w") as file:
        file.write("#!/bin/sh\\necho 1\\n")  # Another user's process, as a container's is.
    os.chmod(file.name, 0o755)
    place = {"runtime_dir": pathlib.Path(folder, "run"), "interpreter": own_interpreter(), "timeout_s": 20}
    try:
        engine = Engine(executable=file.name)
        await open_borrowed_way(engine, "theirs", "http://127.0.0.1:80", what="way", holder="one", **place)
    except InspanError as error:
        refusals["reach"] = f"{type(error).__name__}: {error}"
    sandbox = await provider.create(make_spec(), key="facts")
    argv = ["sh", "-c", "id -u; echo x >$HOME/x && echo home; echo x 2>&- >/usr/x || echo read-only"]
    said = (await sandbox.exec(argv, timeout_s=20)).stdout.decode().split()
    descriptor = dict(sandbox.descriptor)
    await sandbox.stop()
    left = os.listdir(folder + "/run/bubblewrap")
    print(json.dumps([os.geteuid(), passed, failed, refusals, said, descriptor, left]))
anyio.run(main)
"""
QUICK = [
    "exit_codes_are_the_commands_own",
    "deadline_kills_the_whole_group",
    "files_come_back_unchanged",
    "hosts_files_are_not_there",
    "hosts_processes_are_not_there",
    "hosts_network_is_not_there",
    "only_declared_urls_are_reached",
    "closed_way_is_closed",
    "mounts_are_shown",
    "stop_leaves_no_process",
    "time_to_live_ends_it",
    "cancelled_create_leaves_nothing",
]


USABLE = """
import os, sys
assert os.access(os.path.realpath(sys.executable), os.X_OK), sys.executable
import inspan_runtime.providers.bubblewrap, inspan_runtime.testing.sandbox_checks
"""


def run_as_nobody(folder, wanted):
    """Run the program as another user; where that cannot be, say it loudly."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}
    env["PYTHONPATH"] = os.pathsep.join(one for one in sys.path if one)
    start, pythons = [], [sys.executable]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("NO ORDINARY USER: setpriv is not installed (apt-get install util-linux)")
        start = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
        os.chown(folder, NOBODY, NOBODY)
        pythons += [f"/usr/bin/python3.{minor}" for minor in range(11, 20)]
    for python in filter(os.path.exists, pythons):
        if subprocess.run([*start, python, "-c", USABLE], capture_output=True, env=env).returncode == 0:
            break
    else:
        pytest.skip(f"NO ORDINARY USER: user {NOBODY} may run none of {pythons} with inspan's modules")
    argv = [*start, python, "-c", PROGRAM, str(folder), json.dumps(wanted)]
    run = subprocess.run(argv, capture_output=True, timeout=LIMIT_S, env=env, cwd="/")
    assert run.returncode == 0, run.stderr.decode()[-3000:]
    return json.loads(run.stdout)


@pytest.fixture
def folder():
    """A folder that another user gets to: pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="inspan-ordinary-") as made:
        yield made


@pytest.mark.sandbox
@pytest.mark.timeout(200)
@pytest.mark.parametrize("wanted", [QUICK, pytest.param([], marks=pytest.mark.full)], ids=["quick", "whole"])
def test_ordinary_user_has_sandboxes(folder, wanted):
    user, passed, failed, refusals, said, descriptor, left = run_as_nobody(folder, wanted)
    assert user != 0 and failed == {}
    assert set(passed) >= set(wanted) and len(passed) >= (len(wanted) or 60)
    assert said == ["0", "home", "read-only"]
    assert descriptor["root"] == "read-only" and "are writable" in descriptor["notice"]
    assert refusals["root"].startswith("SandboxCreateError: root: ")
    assert refusals["limits"].startswith("ProviderUnavailable: limits: ")
    assert "this user may not enter the sandbox's network" in refusals["reach"]
    assert refusals["reach"].startswith("ReachUnavailable: way to http://127.0.0.1:80 cannot be opened: ")
    assert left == []
