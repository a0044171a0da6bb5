"""What a session asks of its sandbox, call by call: each is a round trip that every run pays for."""

from __future__ import annotations

import pytest

from inspan_runtime.testing.fake_supervisor import HarnessPlan
from inspan_runtime.testing.fuzz_run import play, trial_of
from inspan_runtime.testing.scenarios import Scenario
from inspan_runtime.testing.scripted_harness import ScriptedHarness, scripted_program

SEED = ["exec sh", "exec true"]  # The one look; the plugin's own check.
ACTIVATE = [
    "upload input.json",  # The plugin's.
    "exec env",
    "upload process_supervisor.py",
    "upload command.json",
    "launch",
    "download cleanup.json",
    "download processes.json",
    "download progress.log",  # The plugin's, as the next.
    "download output.json",
]
CLOSE = {True: ["stop", "close"], False: ["remove", "disconnect", "close"]}


def calls(verdict):
    """The calls in order: what is called, and on which file or with which program."""
    told = []
    for _, line in verdict.log:
        kind, _, about = line.partition(" ")
        if kind in ("exec", "upload", "download"):
            told.append(f"{kind} {about.split()[0].rpartition('/')[2]}")
        elif kind in ("create", "connect", "launch", "look", "remove", "stop", "disconnect", "close"):
            told.append(kind)
    return told


@pytest.mark.parametrize("owned", [True, False], ids=["owned", "borrowed"])
def test_a_session_makes_these_calls_and_no_other(owned):
    trial = trial_of(ScriptedHarness(), scripted_program, request={"input": "hi"})
    verdict = play(Scenario(owned=owned, harness=HarnessPlan(runs_s=0.5)), trial)
    assert not verdict.broken
    assert calls(verdict) == ["create" if owned else "connect", *SEED, *ACTIVATE, *CLOSE[owned]]
