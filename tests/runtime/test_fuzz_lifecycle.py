"""The real service, driver and machine under the fuzzer; and every fault that it has found, for good."""

from __future__ import annotations

import random
import re
import subprocess
import sys

import pytest
from attrs import evolve

from inspan_core.errors import UsageError
from inspan_core.receipts import CleanupReceipt
from inspan_runtime import perform
from inspan_runtime.testing.fake_supervisor import HarnessPlan
from inspan_runtime.testing.faults import CallKind, Fault, FaultKind
from inspan_runtime.testing.fuzz import Found, fuzz_lifecycle
from inspan_runtime.testing.fuzz_run import play, trial_of
from inspan_runtime.testing.fuzz_story import tell
from inspan_runtime.testing.scenarios import Ask, Scenario, Visit
from inspan_runtime.testing.schedules import Delay, Schedule
from inspan_runtime.testing.scripted_harness import ScriptedHarness, scripted_program


@pytest.fixture
def trial():
    return trial_of(ScriptedHarness(), scripted_program, request={"input": "hi"})


def fault(call, kind, nth=0, delay_s=0.0):
    return Fault(call=call, nth=nth, kind=kind, delay_s=delay_s)


FOUND = {
    "a connect that close cut off left its provider's client open": Scenario(
        visits=(Visit(ask=Ask.SEED), Visit(ask=Ask.CLOSE))
    ),
    "a reconnect that failed left its provider's client open": Scenario(
        owned=True, faults=(fault(CallKind.CONNECT, FaultKind.ERROR_BEFORE),), kills=(11,)
    ),
    "one failed reconnect made a run's end unknown": Scenario(
        owned=True,
        harness=HarnessPlan(runs_s=30.0),
        faults=(fault(CallKind.CONNECT, FaultKind.ERROR_BEFORE),),
        kills=(12,),
    ),
    "a close met a reconnect, and one of two clients was left open": Scenario(
        visits=(Visit(ask=Ask.SEED), Visit(ask=Ask.CLOSE, at_call=13)), kills=(3, 28), neighbour=True
    ),
    "one failed download of the receipt made a run's end unknown": Scenario(
        faults=(fault(CallKind.DOWNLOAD, FaultKind.ERROR_BEFORE, nth=1),)
    ),
    "a refused create left its provider's client open": Scenario(
        owned=True, faults=(fault(CallKind.CREATE, FaultKind.REFUSED),)
    ),
    "a client that could not be closed was forgotten": Scenario(
        owned=True, faults=(fault(CallKind.CLOSE_CLIENT, FaultKind.ERROR_BEFORE),)
    ),
    "a refused close after a restart left a record for ever": Scenario(
        visits=(Visit(ask=Ask.CLOSE, at_call=3),), kills=(26,)
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_once_is_not_there_any_more(name, trial):
    for latency_s in (0.01, 0.0):
        scenario = evolve(FOUND[name], latency_s=latency_s)
        verdict = play(scenario, trial)
        assert not verdict.broken, tell(scenario, verdict)


@pytest.mark.parametrize("owned", [False, True])
def test_the_server_may_die_at_any_record(owned, trial):
    lost = []
    for record in range(1, 40):
        scenario = Scenario(owned=owned, kills=(record,))
        verdict = play(scenario, trial)
        assert not verdict.broken, tell(scenario, verdict)
        if verdict.activated != 200:
            lost.append(tell(scenario, verdict))
    # Only a launch that was ordered and not yet claimed is lost, for no launch is ever repeated.
    assert len(lost) == 1
    assert re.search(r"\[main\] Staged\n.*the server is killed", lost[0])


def test_nothing_is_found_in_the_real_thing():
    report = fuzz_lifecycle(examples=150, seed=20)
    assert report.examples >= 150
    assert report.ended_well > report.examples // 5, "most worlds are too hostile to say anything"


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(30, 34))
def test_nothing_is_found_in_the_real_thing_in_thousands_of_examples(seed):
    fuzz_lifecycle(examples=2500, seed=seed)


def scenario_of(number):
    draw = random.Random(number)
    return Scenario(
        owned=draw.random() < 0.5,
        visits=(
            *(Visit(ask=draw.choice(list(Ask)), at_call=draw.randrange(20), stays=2) for _ in range(2)),
            *(Visit(ask=Ask.ACTIVATE, beside=Ask.ACTIVATE) for _ in range(number % 3)),
        ),
        faults=(fault(draw.choice(list(CallKind)), draw.choice(list(FaultKind)), nth=draw.randrange(3)),),
        kills=(draw.randrange(1, 30),),
        latency_s=draw.choice((0.0, 0.01)),
        thinks_s=draw.choice((0.0, 1.0)),
        neighbour=True,
        schedule=Schedule(delays=(Delay(decision=draw.randrange(1, 60), turns=4),), shuffle=number % 2 * 5),
    )


@pytest.mark.parametrize("number", range(12))
def test_a_scenario_always_ends_in_the_same_way(number, trial):
    scenario = scenario_of(number)
    stories = {re.sub(r"[0-9a-f]{32}", "~", tell(scenario, play(scenario, trial))) for _ in range(3)}
    assert len(stories) == 1


def test_a_plugin_that_cannot_end_well_is_told_what_it_lacks():
    with pytest.raises(UsageError, match="does program= write what the plugin's parser needs"):
        fuzz_lifecycle(ScriptedHarness(), program=lambda start: (), examples=1)
    with pytest.raises(UsageError, match="expected program="):
        fuzz_lifecycle(ScriptedHarness())


async def believes_that_it_ended(sandbox, session_dir, **_):
    return CleanupReceipt(cleanup_confirmed=True, return_code=0, error=None, timed_out=False)


def test_the_seed_of_a_failure_finds_it_again(monkeypatch, trial):
    monkeypatch.setattr(perform, "await_receipt", believes_that_it_ended)
    with pytest.raises(Found) as first:
        fuzz_lifecycle(examples=500, seed=4)
    with pytest.raises(Found) as again:
        fuzz_lifecycle(examples=500, seed=first.value.seed)
    assert again.value.scenario == first.value.scenario
    assert again.value.examples == first.value.examples
    assert "seed=4" in str(first.value) and "What happened:" in str(first.value)
    assert play(first.value.scenario, trial).broken


def test_the_command_line_fuzzes_the_built_in_harness():
    command = [sys.executable, "-W", "error", "-m", "inspan_runtime.testing.fuzz"]
    done = subprocess.run([*command, "--seed", "5", "--examples", "20"], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    assert b"nothing was found (seed 5)" in done.stdout
