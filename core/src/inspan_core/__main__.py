"""``python -m inspan_core``: check the machine by exploring it, or show its tables.

check [--json] [--waiters N]            explore everything; exit 1 when a promise is broken
show [--format table|mermaid|dot|svg]   the tables as a page, or the session's phases as a diagram
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence

from inspan_core import diagram
from inspan_core.testing.explorer import Report, explore


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments, or None for those of the process.

    Returns:
        0 when done, 1 when the machine breaks a promise. Usage errors exit with 2.
    """
    arguments = _parser().parse_args(argv)
    if arguments.verb == "show":
        sys.stdout.write(diagram.FORMATS[arguments.format]())
        return 0
    begun = time.monotonic()
    report = explore(waiters=arguments.waiters)
    seconds = round(time.monotonic() - begun, 3)
    sys.stdout.write(_as_json(report, seconds) if arguments.json else _as_text(report, seconds))
    return 1 if report.findings or report.unreached else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m inspan_core", description="inspan's session machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    check = verbs.add_parser("check", help="explore every reachable state and hold the invariants")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.add_argument(
        "--waiters", type=_waiters, default=2, metavar="N", help="clients of a kind that wait at once (2)"
    )
    show = verbs.add_parser("show", help="print the machine's tables")
    show.add_argument(
        "--format", choices=tuple(diagram.FORMATS), default="table", help="a page, or a diagram"
    )
    return parser


def _waiters(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 9:
        raise argparse.ArgumentTypeError(f"{number} is not between 1 and 9")
    return number


def _as_json(report: Report, seconds: float) -> str:
    findings = [
        {
            "invariant": finding.invariant,
            "reason": finding.reason,
            "story": [str(chapter.event) for chapter in finding.story],
        }
        for finding in report.findings
    ]
    answer = {
        "violations": findings,
        "unreached": report.unreached,
        "states": report.states,
        "transitions": report.transitions,
        "probes": report.probes,
        "seconds": seconds,
    }
    return json.dumps(answer) + "\n"


def _as_text(report: Report, seconds: float) -> str:
    lines = [str(finding) + "\n" for finding in report.findings]
    lines.extend(f"nothing leads to {place}" for place in report.unreached)
    lines.append(f"{report.states} states, {report.transitions} transitions, {report.probes} probes")
    lines.append(
        f"{len(report.findings)} violations, {len(report.unreached)} places unreached, {seconds:.1f} s"
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
