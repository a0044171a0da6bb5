"""A failing scenario as a page that a person can read: what was asked for, what went wrong, what happened."""

from __future__ import annotations

import re
from collections.abc import Iterator

from inspan_runtime.testing.fake_supervisor import HarnessPlan
from inspan_runtime.testing.fuzz_run import Verdict
from inspan_runtime.testing.scenarios import Scenario

LINES_LIMIT = 120
FOLDER = re.compile(r"/tmp/inspan/[0-9a-f]{32}")


def tell(scenario: Scenario, verdict: Verdict) -> str:
    """The story of a scenario, with the broken rules first."""
    lines = [f"{broken.rule}: {broken.detail}" for broken in verdict.broken]
    lines += ["", "The scenario:", *(f"  {line}" for line in _outline(scenario)), "", "What happened:"]
    log = [f"{at:10.3f}  {line}" for at, line in verdict.log]
    if len(log) > LINES_LIMIT:
        log = [
            *log[: LINES_LIMIT // 2],
            f"      ...   {len(log) - LINES_LIMIT} lines",
            *log[-LINES_LIMIT // 2 :],
        ]
    return FOLDER.sub("~", "\n".join([*lines, *log]))


def _outline(scenario: Scenario) -> Iterator[str]:
    whose = "the server makes the sandbox itself" if scenario.owned else "the sandbox is supplied"
    yield f"{whose}; a call takes {scenario.latency_s:g} s"
    yield "the main client seeds, activates and closes" + (
        "; so does a neighbour, for the same slot" if scenario.neighbour else ""
    )
    if scenario.owned and scenario.lease_s is not None:
        yield f"a sandbox may live for {scenario.lease_s:g} s"
    for visit in scenario.visits:
        stays = "" if visit.stays is None else f", and is gone after {visit.stays} more"
        when = f"after {visit.at_call} calls"
        if visit.beside is not None:
            when = f"at the moment when the main client begins to {visit.beside.value}"
        yield f"a visitor comes {when} to {visit.ask.value}{stays}"
    if scenario.thinks_s:
        yield f"clients think for {scenario.thinks_s:g} s between an answer and the next request"
    yield from (str(fault) for fault in scenario.faults)
    yield from (f"the server is killed once it has made {record} records" for record in scenario.kills)
    if scenario.harness != HarnessPlan():
        yield f"the harness: {_manners(scenario.harness)}"
    for delay in scenario.schedule.delays:
        yield f"decision {delay.decision}: whose turn it is waits for {delay.turns} turns"
    if scenario.schedule.shuffle:
        yield f"ready tasks are shuffled (by {scenario.schedule.shuffle})"


def _manners(plan: HarnessPlan) -> str:
    words = [f"runs {plan.runs_s:g} s", f"exits {plan.return_code}"]
    words += (
        [f"its supervisor takes {plan.loads_s:g} s to start"] if plan.loads_s != HarnessPlan().loads_s else []
    )
    words += [] if plan.heeds_term else ["ignores SIGTERM"]
    words += [] if plan.is_proven else ["cannot be proven stopped"]
    words += [] if plan.dies_after_s is None else [f"its supervisor is killed after {plan.dies_after_s:g} s"]
    return ", ".join(words)
