"""Checks of a plugin's declaration, and of its parser over whole, damaged and hostile artifacts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import attrs

from inspan_core.codec import encode_observations
from inspan_core.findings import Outcome
from inspan_core.harness import ArtifactProblem, Artifacts, ParsedActivation, ParseInput
from inspan_core.wire import ResponsesRequest
from inspan_runtime.testing.harness_case import Check, HarnessCase
from inspan_runtime.testing.sandbox_check_support import CheckFailed, expect

GRANTS_LEVEL = 3
GARBAGE: Mapping[str, bytes] = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "an object": b"{}",
    "a number": b"1e999",
    "deep": b"[" * 100_000,
    "binary": bytes(range(256)) * 64,
    "lines": b'{"event": 7}\n[]\n"\n\xff\xfe\n{}\n' * 20,
    "a surrogate": b'{"text": "\\ud800"}\n',
}
HOSTILE = (
    "null", "true", "0", "-1", "1.5", "1e308", "1e999", "NaN", "9" * 4000, '""', '"\\u0000"', '"\\ud800"',
    "[]", "{}", "[null]", '[{"":[]}]', '{"a":' * 60 + "1" + "}" * 60, "[" * 5000 + "]" * 5000,
    '"' + "x" * 100_000 + '"',
)  # fmt: skip
"""JSON (and what only looks like it) that a task can put in the place of any value."""

MOST_HOSTILE = 500
PLACEHOLDER = "a value of the check"
CUTS = (0.0, 0.25, 0.5, 0.75, 0.9)


async def declaration_is_sound(case: HarnessCase) -> None:
    """The plugin loads by itself; version, summary, level, tool sources and options fit together."""
    spec = case.harness.spec
    expect(bool(spec.version.strip()), "the declaration has no version")
    expect(bool(spec.summary.strip()), "the declaration has no summary, which listings show")
    expect("\n" not in spec.summary, "the summary is more than one line")
    expect(spec.request_fields["input"] == "applied", "request_fields: input is not applied")
    granted = sorted(spec.tool_sources - {"builtin"})
    enough = not granted or spec.level >= GRANTS_LEVEL
    expect(enough, f"tool_sources has {granted}, which needs level {GRANTS_LEVEL}; it is {spec.level}")
    try:
        json.dumps(dict(spec.options))
    except (TypeError, ValueError) as error:
        raise CheckFailed(f"an option's default is no JSON value: {error}") from error
    unknown = sorted(set(case.options) - set(spec.options))
    expect(not unknown, f"options that are not declared: {unknown}")


async def request_fields_exist(case: HarnessCase) -> None:
    """Each declared request field is one of a Responses request: a misspelt one would be refused."""
    known = {each.name for each in attrs.fields(ResponsesRequest)} - {"raw"}
    unknown = sorted(set(case.harness.spec.request_fields) - known)
    expect(not unknown, f"request_fields has {unknown}, which no Responses request has")


async def nothing_is_never_completed(case: HarnessCase) -> None:
    """Without artifacts no run is completed, whatever its exit code says."""
    given = attrs.evolve((await case.whole_run()).parse_input, artifacts=Artifacts())
    for return_code in (0, 1, -9, 124, None):
        for timed_out in (False, True):
            run = attrs.evolve(given, return_code=return_code, timed_out=timed_out)
            what = f"no artifacts, return code {return_code}, timed_out {timed_out}"
            _never_completed(_parsed(case, run, what), what)


async def garbage_is_never_completed(case: HarnessCase) -> None:
    """Whatever lies in the artifacts' place, the parser returns, and never with a completed run."""
    given = (await case.whole_run()).parse_input
    for name, data in GARBAGE.items():
        run = _with(given, dict.fromkeys(given.artifacts.files, data))
        _never_completed(_parsed(case, run, f"all artifacts hold {name}"), f"all artifacts hold {name}")
        for file in given.artifacts.files:
            what = f"{file} holds {name}"
            _parsed(case, _with(given, {**given.artifacts.files, file: data}), what)


async def cut_artifacts_are_never_completed(case: HarnessCase) -> None:
    """Artifacts that are cut at any place parse, and a run whose artifacts are all cut is not completed."""
    given = (await case.whole_run()).parse_input
    files = given.artifacts.files
    for part in CUTS:
        what = f"all artifacts are cut after {part:.0%}"
        cut = {name: data[: int(len(data) * part)] for name, data in files.items()}
        _never_completed(_parsed(case, _with(given, cut), what), what)
        for name, data in files.items():
            single = {**files, name: data[: int(len(data) * part)]}
            _parsed(case, _with(given, single), f"{name} is cut after {part:.0%}")
            tail = _with(given, {**files, name: data[int(len(data) * part) :]}, truncated=name)
            _parsed(case, tail, f"of {name} only the tail after {part:.0%} was kept")


async def hostile_values_are_survived(case: HarnessCase) -> None:
    """Any value of an artifact's JSON may be another, lines come twice or backwards: the parser returns."""
    given = (await case.whole_run()).parse_input
    files = given.artifacts.files
    for name, data in files.items():
        lines = data.splitlines(keepends=True)
        for how, moved in (("backwards", lines[::-1]), ("twice", lines * 2)):
            _parsed(case, _with(given, {**files, name: b"".join(moved)}), f"{name} has its lines {how}")
        places = [(index, draft) for index, line in enumerate(lines) for draft in _drafts(line)]
        step = max(1, len(places) * len(HOSTILE) // MOST_HOSTILE)
        changes = ((place, value) for place in places for value in HOSTILE)
        for (index, draft), value in islice(changes, 0, None, step):
            line = draft.replace(json.dumps(PLACEHOLDER), value).encode() + b"\n"
            changed = b"".join([*lines[:index], line, *lines[index + 1 :]])
            what = f"line {index + 1} of {name} is {line[:300].decode('utf-8', 'replace')!r}"
            _parsed(case, _with(given, {**files, name: changed}), what)


def _drafts(line: bytes) -> Iterator[str]:
    """The line's JSON, once for each value in it, with a placeholder there."""
    try:
        document = json.loads(line)
    except ValueError:
        return

    def walk(value: Any, put: Any) -> Iterator[str]:
        yield json.dumps(put(PLACEHOLDER))
        parts = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        for key, part in parts:
            yield from walk(part, lambda new, key=key: put(_replaced(value, key, new)))

    yield from walk(document, lambda new: new)


def _replaced(value: Any, key: Any, new: Any) -> Any:
    copy = value.copy()
    copy[key] = new
    return copy


async def artifact_problems_become_gaps(case: HarnessCase) -> None:
    """What could not be copied is told as a gap with its code, so that nobody takes it for nothing."""
    given = (await case.whole_run()).parse_input
    for name in given.artifacts.files:
        problem = ArtifactProblem(name=name, code="artifact_too_large", detail=f"{name}: a check's own")
        files = {other: data for other, data in given.artifacts.files.items() if other != name}
        run = attrs.evolve(given, artifacts=Artifacts(files=files, problems=(problem,)))
        gaps = _parsed(case, run, f"{name} could not be copied").observations.gaps
        told = any(gap.code == problem.code and name in gap.detail for gap in gaps)
        expect(told, f"{name} could not be copied ({problem.code}), but no gap says so")


async def a_cut_off_run_is_never_completed(case: HarnessCase) -> None:
    """A run that close interrupted, or whose deadline fired, is not completed, however whole it looks."""
    given = (await case.whole_run()).parse_input
    changes: list[dict[str, Any]] = [{"interrupted": True, "return_code": -15}]
    for change in [*changes, {"timed_out": True, "return_code": -15}]:
        what = " and ".join(f"{name} is {value}" for name, value in change.items())
        _never_completed(_parsed(case, attrs.evolve(given, **change), what), what)


async def parsing_is_pure(case: HarnessCase) -> None:
    """The same artifacts give the same response and observations: no clock, no random ids, no state."""
    given = (await case.whole_run()).parse_input
    first, second = (_parsed(case, given, "the same artifacts again") for _ in range(2))
    expect(first == second, "the same artifacts parsed twice gave two results")


def _with(given: ParseInput, files: Mapping[str, bytes], *, truncated: str | None = None) -> ParseInput:
    problems = given.artifacts.problems
    if truncated is not None:
        detail = f"{truncated}: only its tail was kept"
        problems = (*problems, ArtifactProblem(name=truncated, code="artifact_truncated", detail=detail))
    return attrs.evolve(given, artifacts=Artifacts(files=files, problems=problems))


def _parsed(case: HarnessCase, run: ParseInput, what: str) -> ParsedActivation:
    """What the parser returns, seen to be valid."""
    try:
        parsed = case.harness.parse(run)
        encode_observations(parsed.observations)
        json.dumps(parsed.response, allow_nan=False).encode("utf-8")
    except Exception as error:  # a plugin's hook: whatever it raises is the finding
        raise CheckFailed(f"{what}: the parser raised {type(error).__name__}: {error}") from error
    return parsed


def _never_completed(parsed: ParsedActivation, what: str) -> None:
    expect(parsed.outcome is not Outcome.COMPLETED, f"{what}, and the parser says completed")


PARSE_CHECKS: list[Check] = [
    declaration_is_sound,
    request_fields_exist,
    nothing_is_never_completed,
    garbage_is_never_completed,
    cut_artifacts_are_never_completed,
    hostile_values_are_survived,
    artifact_problems_become_gaps,
    a_cut_off_run_is_never_completed,
    parsing_is_pure,
]
