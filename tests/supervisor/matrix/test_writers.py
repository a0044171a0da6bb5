"""A tool that still writes when the end comes has written its last before a confirmed receipt.

Twice the same sizes would only show that nothing was written for a moment. The proof is that between them
nobody lives who writes, and that nobody holds open what every writer holds open.
"""

import pytest

from .cells import try_cell
from .rules import ADOPTED, CELLS, KINDS, NATURAL, SEED, Cell, Ending, expected, representatives

pytestmark = pytest.mark.timeout(120)


def must_fall_silent(cell):
    """Whether all that write in this cell must be dead after it; a race leaves that open."""
    writers = {process.name for process in KINDS[cell.kind] if process.writes}
    return cell.ending.name != "race" and not any(writers & one.lives for one in expected(cell))


SILENT = tuple(filter(must_fall_silent, CELLS))
QUICK = set(representatives(tuple(cell for cell in SILENT if cell.ending.name == "close")))


def marked(cell):
    marks = [pytest.mark.sandbox] if cell.provider == "bubblewrap" else []
    return pytest.param(cell, id=str(cell), marks=marks if cell in QUICK else [*marks, pytest.mark.full])


@pytest.mark.parametrize("cell", [marked(cell) for cell in SILENT])
def test_nothing_changes_the_task_after_the_receipt(portal, benches, cell):
    bench = benches(cell.provider)
    seen = portal.call(lambda: try_cell(bench, cell, writes=True))
    census = seen.census
    assert census["sizes"] != {} and all(census["sizes"].values()), "somebody wrote"
    assert not census["holders"], "nobody holds the lifeline"
    assert census["grew"] == {}
    assert census["marked_again"] == census["marked"]


def test_the_proof_can_fail_a_tool_that_a_natural_exit_leaves_alone_goes_on_writing(portal, benches):
    cell = Cell("own session", "exits", Ending("natural"), "local")
    assert [(one.ending, one.lives) for one in expected(cell)] == [(NATURAL, {"child"})]
    bench = benches(cell.provider)
    seen = portal.call(lambda: try_cell(bench, cell, writes=True))
    assert seen.census["holders"]
    assert seen.census["marked_again"] == seen.census["marked"] != []


def test_every_kind_is_tried_that_a_stop_ends_and_every_one_where_everybody_is_drained():
    stopped = {cell.kind for cell in SILENT if cell.drain == SEED}
    assert stopped == {
        kind
        for kind, processes in KINDS.items()
        if all(one.place != ADOPTED and one.above != "server" for one in processes if one.writes)
    }
    assert {cell.kind for cell in SILENT if cell.drain != SEED} == set(KINDS)
