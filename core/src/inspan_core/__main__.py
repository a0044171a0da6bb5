"""``python -m inspan_core``: check the machine by exploring it, or show its tables.

check [--json] [--waiters N] [--mutants | --no-mutants]
    explore everything, compare every answer with the contract, try wrong machines; exit 1 when a promise is
    broken, a part of the tables is not reached, or a wrong machine is not found out
show [--format table|mermaid|dot|svg]
    the tables as a page, or the session's phases as a diagram
"""

import argparse
import sys
import time
from collections.abc import Sequence

from inspan_core import diagram
from inspan_core.testing.checkup import as_json, as_text, check_up


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
    found = check_up(
        waiters=arguments.waiters,
        by_hand=not arguments.no_mutants,
        by_rote=arguments.mutants,
    )
    seconds = time.monotonic() - begun
    sys.stdout.write(as_json(found, seconds) if arguments.json else as_text(found, seconds))
    return 0 if found.is_good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m inspan_core", description="inspan's session machine.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    check = verbs.add_parser("check", help="explore every reachable state and hold the invariants")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.add_argument(
        "--waiters", type=_waiters, default=2, metavar="N", help="clients of a kind that wait at once (2)"
    )
    which = check.add_mutually_exclusive_group()
    which.add_argument(
        "--mutants", action="store_true", help="try the mechanical mutants too, which takes minutes"
    )
    which.add_argument("--no-mutants", action="store_true", help="try no mutants at all")
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


if __name__ == "__main__":
    sys.exit(main())
