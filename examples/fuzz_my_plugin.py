"""Fuzz the life of sessions under your own harness plugin: ``python fuzz_my_plugin.py [SEED]``.

Needs ``pip install "inspan-core[runtime,testing]"`` and the plugin; nothing is started, and no time passes.
The plugin here is `inspan-echo`. Of the program that it launches only a model is needed: which files it
writes into the session's folder, and when.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import inspan_echo
from inspan_runtime.testing.fake_supervisor import ProgramStart
from inspan_runtime.testing.fuzz import Found, fuzz_lifecycle


def program(start: ProgramStart) -> Iterable[tuple[float, str, bytes]]:
    """The files that ``sandbox_runner.py`` writes: part of the run (0 to 1), name, contents by then."""
    task = json.loads(start.files["input.json"])
    said = {"event": "echoed", "at": 1.5, "text": task["messages"][-1]["content"]}
    yield 0.5, "events.jsonl", json.dumps(said).encode() + b"\n"
    yield 1.0, "output.json", json.dumps({"ended": "answered", "finish_reason": None}).encode()


def main(seed: int | None = None, examples: int = 300) -> int:
    """Fuzz, and say what was found."""
    try:
        report = fuzz_lifecycle(
            inspan_echo,
            program=program,
            request={"input": "Say hello."},
            options={"model": False},
            examples=examples,
            seed=seed,
        )
    except Found as found:
        print(found)
        return 1
    print(f"{report.examples} worlds, {report.calls} calls into sandboxes, {report.records} journal records:")
    print(f"no promise was broken (seed {report.seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))
