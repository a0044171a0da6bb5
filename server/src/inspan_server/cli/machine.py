"""`inspan machine`: the session machine's tables in words, and a walk over everything that it can reach."""

from __future__ import annotations

from inspan_core.errors import UsageError
from inspan_core.rules import Ignored, Row, Rule
from inspan_core.session import Phase
from inspan_core.tables import SESSION
from inspan_server.cli.exit_codes import DONE, FAILED


def show_machine() -> int:
    """Print every phase with what is handled in it and where that leads; the rest is refused or ignored."""
    for phase in Phase:
        print(phase.name)
        for key, row in SESSION[phase].items():
            said = _said(row)
            if said is not None:
                print(f"    {getattr(key, 'name', None) or getattr(key, '__name__', key)!s:<18} {said}")
    return DONE


def check_machine(*, waiters: int) -> int:
    """Walk every reachable state and print what was found.

    Args:
        waiters: How many clients of a kind may wait at once, at least 1.

    Returns:
        0; 1 when a promise is broken or a row of the tables is never reached.

    Raises:
        UsageError: The testing kit is not there.
    """
    if waiters < 1:
        raise UsageError(f"--waiters {waiters}: expected 1 or more")
    try:
        from inspan_core.testing.explorer import explore
    except ImportError as error:
        raise UsageError(
            f"the testing kit cannot be used ({error}): pip install 'inspan-core[testing]'"
        ) from error
    report = explore(waiters=waiters)
    for finding in report.findings:
        print(finding)
    for missing in report.unreached:
        print(f"never reached: {missing}")
    print(
        f"{report.states:,} states, {report.transitions:,} transitions, {report.probes:,} probes; "
        f"{len(report.findings)} broken promises"
    )
    return FAILED if report.findings or report.unreached else DONE


def _said(row: Row) -> str | None:
    if isinstance(row, Rule):
        targets = ", ".join(sorted(phase.name for phase in row.to))
        return f"-> {targets}" if targets else "handled; the phase stays"
    return f"ignored: {row.reason}" if isinstance(row, Ignored) else None
