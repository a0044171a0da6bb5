"""Fuzz the life of a session: find the schedule, the fault or the moment of death that breaks a promise.

    from inspan_runtime.testing.fuzz import fuzz_lifecycle
    fuzz_lifecycle(my_plugin, program=my_program, examples=500)

or ``python -m inspan_runtime.testing.fuzz --examples 2000``. Each example is one world (see
`inspan_runtime.testing.scenarios`) in virtual time; a failing one is shrunk to a short story, with the seed
that finds it again.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis
from attrs import define
from hypothesis import HealthCheck, Phase

from inspan_core.errors import UsageError
from inspan_runtime.testing.fake_commands import Answerer
from inspan_runtime.testing.fake_supervisor import Program
from inspan_runtime.testing.fuzz_reduce import reduced
from inspan_runtime.testing.fuzz_run import NOT_WELL, Trial, Verdict, play, trial_of
from inspan_runtime.testing.fuzz_story import tell
from inspan_runtime.testing.scenarios import Scenario, scenarios
from inspan_runtime.testing.scripted_harness import ScriptedHarness, scripted_program

__all__ = ["Found", "FuzzReport", "fuzz_lifecycle", "fuzz_trial", "main"]

DEFAULT_EXAMPLES = 500
DEFAULT_REQUEST: Mapping[str, Any] = {"input": "Say hello."}


class Found(AssertionError):
    """A promise was broken; the message is the story.

    Attributes:
        rule: Which one.
        scenario: The simplest scenario that was found to break it.
        verdict: What came of it.
        seed: Finds it again.
        examples: How many scenarios were played until the first that broke it.
    """

    def __init__(self, rule: str, scenario: Scenario, verdict: Verdict, *, seed: int, examples: int) -> None:
        self.rule, self.scenario, self.verdict = rule, scenario, verdict
        self.seed, self.examples = seed, examples
        super().__init__(
            f"{rule} (example {examples})\n\n{tell(scenario, verdict)}\n\n"
            f"Find it again: fuzz_lifecycle(..., seed={seed}), or only play it:\n  {scenario!r}"
        )


@define
class FuzzReport:
    """What was fuzzed without anything being found.

    Attributes:
        seed: Where it began.
        examples: How many scenarios were played.
        ended_well: In how many of them the activation was answered 200.
        calls: How many calls into sandboxes.
        decisions: How many decisions of the scheduler.
        records: How many journal records.
    """

    seed: int
    examples: int = 0
    ended_well: int = 0
    calls: int = 0
    decisions: int = 0
    records: int = 0

    def add(self, verdict: Verdict) -> None:
        """Count one scenario."""
        self.examples += 1
        self.ended_well += verdict.activated == 200
        self.calls += verdict.calls
        self.decisions += verdict.decisions
        self.records += verdict.records


def fuzz_lifecycle(
    plugin: object | None = None,
    *,
    program: Program | None = None,
    request: Mapping[str, Any] = DEFAULT_REQUEST,
    options: Mapping[str, Any] | None = None,
    answer: Answerer | None = None,
    examples: int = DEFAULT_EXAMPLES,
    seed: int | None = None,
    kills: bool = True,
    shrinks: bool = True,
) -> FuzzReport:
    """Fuzz a harness plugin under the real service, driver and machine, in a fake world.

    Args:
        plugin: A module or an object with hooks; a tiny one by default.
        program: A model of the program that it launches: what it writes into the session's folder.
        request: The Responses request that activates it.
        options: The harness's options.
        answer: Answers the plugin's own commands in the sandbox.
        examples: How many scenarios to play.
        seed: Where to begin; a random one by default. The same seed plays the same scenarios.
        kills: Whether servers are killed and restarted.
        shrinks: Whether a failing scenario is made as simple as possible, which takes some hundred plays.

    Returns:
        How much was played.

    Raises:
        Found: A promise was broken.
        UsageError: The activation does not even end well when nothing goes wrong.
    """
    if plugin is None:
        plugin, program = ScriptedHarness(), program or scripted_program
    if program is None:
        raise UsageError("expected program=, a model of what the plugin's program writes")
    trial = trial_of(plugin, program, request=request, options=options, answer=answer)
    return fuzz_trial(trial, examples=examples, seed=seed, kills=kills, shrinks=shrinks)


def fuzz_trial(
    trial: Trial,
    *,
    examples: int = DEFAULT_EXAMPLES,
    seed: int | None = None,
    kills: bool = True,
    shrinks: bool = True,
) -> FuzzReport:
    """Fuzz what is ready to be fuzzed; see `fuzz_lifecycle`."""
    calm = play(Scenario(), trial)
    if {broken.rule for broken in calm.broken} == {NOT_WELL}:
        raise UsageError(
            f"without any fault the activation was answered {calm.activated}: does program= write what the "
            f"plugin's parser needs?\n{tell(Scenario(), calm)}"
        )
    search = _Search(trial, secrets.randbits(32) if seed is None else seed)
    search.run(examples, kills, shrinks)
    return search.report


class _Search:
    """One search of hypothesis; it looks for one broken rule, the first, and shrinks that."""

    def __init__(self, trial: Trial, seed: int) -> None:
        self.report = FuzzReport(seed)
        self._trial, self._rule, self._first_at = trial, "", 0
        self._last: tuple[Scenario, Verdict] | None = None

    def run(self, examples: int, kills: bool, shrinks: bool) -> None:
        test = hypothesis.given(scenarios(kills=kills))(self._try)
        test = hypothesis.seed(self.report.seed)(
            hypothesis.settings(
                max_examples=examples,
                database=None,
                deadline=None,
                derandomize=False,
                print_blob=False,
                report_multiple_bugs=False,
                phases=[Phase.generate, Phase.shrink] if shrinks else [Phase.generate],
                suppress_health_check=list(HealthCheck),
                verbosity=hypothesis.Verbosity.quiet,
            )(test)
        )
        try:
            test()
        except _RuleBroken:
            assert self._last is not None
            scenario, verdict = self._last
            if shrinks:
                scenario = reduced(scenario, self._breaks_it)
                verdict = play(scenario, self._trial)
            raise Found(
                self._rule, scenario, verdict, seed=self.report.seed, examples=self._first_at
            ) from None

    def _breaks_it(self, scenario: Scenario) -> bool:
        return self._rule in [broken.rule for broken in play(scenario, self._trial).broken]

    def _try(self, scenario: Scenario) -> None:
        verdict = play(scenario, self._trial)
        self.report.add(verdict)
        rules = [broken.rule for broken in verdict.broken]
        if rules and not self._rule:
            self._rule, self._first_at = rules[0], self.report.examples
        if self._rule in rules:
            self._last = scenario, verdict
            raise _RuleBroken(self._rule)


class _RuleBroken(Exception):
    """Tells hypothesis."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: fuzz the built-in harness.

    Returns:
        0: nothing was found; 1: a promise was broken.
    """
    parser = argparse.ArgumentParser(
        prog="python -m inspan_runtime.testing.fuzz", description="Fuzz sessions."
    )
    parser.add_argument("--seed", type=int, help="play what was played before")
    parser.add_argument("--examples", type=int, default=DEFAULT_EXAMPLES, help="scenarios to play")
    parser.add_argument("--no-kills", action="store_true", help="the server never dies")
    chosen = parser.parse_args(arguments)
    try:
        report = fuzz_lifecycle(examples=chosen.examples, seed=chosen.seed, kills=not chosen.no_kills)
    except Found as found:
        print(found)  # noqa: T201  # the command's output
        return 1
    print(  # noqa: T201
        f"{report.examples} scenarios, {report.calls} calls, {report.decisions} decisions, "
        f"{report.records} records, {report.ended_well} ended well; nothing was found (seed {report.seed})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
