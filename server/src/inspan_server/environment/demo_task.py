"""The built-in task: a small library with one failing test, and what a scripted model does about it."""

from __future__ import annotations

from typing import Any

from inspan_core.wire import TaskId
from inspan_server.environment.task import Task, TaskFile

README = """\
# stats

Mean and median of a list of numbers. Run the tests with `python3 -m unittest`.
"""

STATS = '''\
"""Mean and median."""


def mean(values):
    return sum(values) / len(values)


def median(values):
    """The middle value; of an even number of values, the mean of the two in the middle."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
'''

TESTS = """\
import unittest

from stats import mean, median


class StatsTest(unittest.TestCase):
    def test_mean(self):
        self.assertEqual(mean([1, 2, 6]), 3)

    def test_median_of_an_odd_number(self):
        self.assertEqual(median([7, 1, 3]), 3)

    def test_median_of_an_even_number(self):
        self.assertEqual(median([7, 1, 3, 5]), 4)


if __name__ == "__main__":
    unittest.main()
"""

BROKEN = "    return ordered[len(ordered) // 2]\n"
MENDED = """\
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
"""
RUN_TESTS = "python3 -B -m unittest"
SUMMARY = (
    "`median` took the upper of the two middle values when their number was even. "
    "It now takes their mean; all three tests pass."
)

DEMO_TASK = Task(
    task_id=TaskId(taskset="inspan", task_id="mend-median"),
    files={
        "README.md": TaskFile(README.encode()),
        "stats.py": TaskFile(STATS.encode()),
        "test_stats.py": TaskFile(TESTS.encode()),
    },
    instruction=(
        "One test of this repository fails. Find out why, mend the library (not the tests), "
        "run the tests, and say in a sentence or two what was wrong."
    ),
    verify=("python3", "-B", "-m", "unittest", "-q", "test_stats"),
    verify_files={"test_stats.py": TaskFile(TESTS.encode())},
    verify_timeout_s=60.0,
)


def demo_script(harness: str) -> dict[str, Any]:
    """What the scripted model answers, for `parse_script`.

    Pi is shown with its own tools for reading and editing; every other harness uses its shell.
    """
    return {"*": _with_pi_tools() if harness == "pi" else _with_the_shell()}


def _with_pi_tools() -> list[dict[str, Any]]:
    edit = {"path": "stats.py", "edits": [{"oldText": BROKEN, "newText": MENDED}]}
    return [
        _reply(0, "The library comes first.", "read", {"path": "stats.py"}),
        _reply(1, "An even number of values needs the mean of the middle two.", "edit", edit),
        _reply(2, "Now the tests.", "bash", {"command": RUN_TESTS}),
        {"content": SUMMARY, "usage": _usage(3)},
    ]


def _with_the_shell() -> list[dict[str, Any]]:
    mend = (
        f"cat > mend.py <<'END'\n{_mending_program()}END\npython3 -B mend.py && rm mend.py && git diff --stat"
    )
    return [
        _reply(0, "The library comes first.", "shell", {"command": "cat stats.py"}),
        _reply(1, "An even number of values needs the mean of the middle two.", "shell", {"command": mend}),
        _reply(2, "Now the tests.", "shell", {"command": RUN_TESTS}),
        {"content": SUMMARY, "usage": _usage(3)},
    ]


def _mending_program() -> str:
    return (
        f"broken = {BROKEN!r}\nmended = {MENDED!r}\n"
        "text = open('stats.py').read()\nassert text.count(broken) == 1\n"
        "open('stats.py', 'w').write(text.replace(broken, mended))\n"
    )


def _reply(turn: int, reasoning: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "reasoning": reasoning,
        "tool_calls": [{"name": tool, "arguments": arguments}],
        "usage": _usage(turn),
    }


def _usage(turn: int) -> dict[str, int]:
    return {
        "prompt_tokens": 900 + 250 * turn,
        "completion_tokens": 60,
        "cached_tokens": 900 if turn else 0,
        "reasoning_tokens": 20,
    }
