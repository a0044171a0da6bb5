"""The table itself: what it covers, what it leaves out and why, and what `make test` takes from it."""

from collections import Counter

import pytest

from .rules import (
    ALL,
    BEHAVIOURS,
    CELLS,
    ENDINGS,
    FORCED,
    KINDS,
    NATURAL,
    PROVIDERS,
    axes_of,
    class_of,
    excluded_because,
    expected,
    representatives,
)

CHOSEN = representatives(CELLS)


def test_the_matrix_is_the_whole_product_but_for_what_a_rule_excludes():
    assert len(ALL) == len(KINDS) * len(BEHAVIOURS) * len(ENDINGS) * len(PROVIDERS) * 2
    excluded = [cell for cell in ALL if cell not in CELLS]
    assert all(excluded_because(cell) for cell in excluded)
    assert {(cell.behaviour, cell.ending.name) for cell in excluded} == {
        ("stops itself", "natural"),
        ("stops itself", "race"),
    }


def test_every_class_has_exactly_one_representative():
    assert Counter(map(class_of, CHOSEN)) == Counter(set(map(class_of, CELLS)))


def test_every_value_of_every_axis_is_among_the_representatives():
    assert {value for cell in CHOSEN for value in axes_of(cell)} == {
        value for cell in CELLS for value in axes_of(cell)
    }


def test_the_classes_are_neither_one_nor_all():
    """A class function that sees everything, or nothing, would make the choice worthless."""
    assert len(KINDS) * 4 < len(CHOSEN) < len(CELLS) / 12


def test_cells_of_one_class_differ_in_nothing_that_is_promised():
    promised = {}
    for cell in CELLS:
        told = [(one.ending, one.return_codes, one.timed_out, len(one.lives)) for one in expected(cell)]
        assert promised.setdefault(class_of(cell), told) == told


@pytest.mark.parametrize("cell", CELLS[:: len(CELLS) // 40], ids=str)
def test_every_process_of_a_cell_is_either_killed_or_lives(cell):
    for one in expected(cell):
        killed = {name for name, lists in one.listed.items() if "killed" in lists}
        names = {process.name for process in KINDS[cell.kind]}
        assert killed | one.lives == names and not killed & one.lives


def test_only_a_race_has_two_endings_and_only_a_deadline_times_out():
    for cell in CELLS:
        endings = [one.ending for one in expected(cell)]
        assert endings == {"natural": [NATURAL], "race": [NATURAL, FORCED]}.get(cell.ending.name, [FORCED])
        assert {one.timed_out for one in expected(cell)} == {cell.ending.name == "deadline"}
