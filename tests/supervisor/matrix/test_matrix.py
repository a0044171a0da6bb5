"""Every cell with real processes; the rules say what must be seen."""

import pytest

from .cells import try_cell
from .rules import CELLS, representatives

QUICK = set(representatives(CELLS))


def marked(cell):
    marks = [pytest.mark.sandbox] if cell.provider == "bubblewrap" else []
    return pytest.param(cell, id=str(cell), marks=marks if cell in QUICK else [*marks, pytest.mark.full])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("cell", [marked(cell) for cell in CELLS])
def test_all_that_is_seen_tells_of_one_allowed_outcome(portal, benches, cell):
    portal.call(try_cell, benches(cell.provider), cell)
