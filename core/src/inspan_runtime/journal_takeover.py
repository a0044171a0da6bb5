"""What a journal's log says that its database does not know, or why the two do not fit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from inspan_runtime.journal import JournalError
from inspan_runtime.journal_log import FoundLog
from inspan_runtime.journal_record import Record

log = logging.getLogger(__name__)


def records_to_take(found: FoundLog, taken: int, path: Path, database: Path) -> Sequence[Record]:
    """The records after the last that the database took, without a gap.

    What was not acknowledged, a killed process did not finish writing: it never happened. Where the machine
    went down, and nothing was synced, what it took with it is given up, and the log says so.

    Args:
        found: What stands in the log.
        taken: Number of the last record in the database.
        path: Of the log.
        database: Its path.

    Raises:
        JournalError: Acknowledged records are missing or broken, or the log is older than the database;
            names the file and the place.
    """
    fresh = [record for record in found.records if record.number > taken]
    last = fresh[-1].number if fresh else taken
    written = max(found.acknowledged, found.records[-1].number if found.records else 0)
    problem = None
    if written < taken and found.is_of_this_boot:
        # Only what stands in the log is taken over; but a machine that went down may lose the log's own note.
        problem = (
            f"{database} ends with record {taken}, and {path} with record {written}: the log is older than "
            f"the database; put the newer one back, or move the folder away"
        )
    elif fresh and fresh[0].number != taken + 1:
        problem = (
            f"{database} ends with record {taken}, and {path} begins with record {fresh[0].number}: what was "
            f"written to the former last, in its -wal file, is missing"
        )
        fresh = []
    elif found.acknowledged > last:
        problem = f"{path} lacks record {last + 1} of the {found.acknowledged} that were acknowledged"
        if found.broken is not None:
            problem += f": it is damaged or cut off at byte {found.broken.offset}: {found.broken.reason}"
        else:
            problem += f": it, or the -wal file of {database}, is cut off"
    if problem is None:
        if found.broken is not None:
            log.warning(
                "%s: what a killed server did not finish writing is dropped, from byte %d on: %s",
                path, found.broken.offset, found.broken.reason,
            )  # fmt: skip
    elif found.is_of_this_boot or found.is_synced:
        raise JournalError(problem)
    else:
        log.error("the machine went down, and took with it what was not synced: %s", problem)
    return fresh
