"""The testing kit of the machine: explore it, play it by hand, walk it at random, prove that checks bite.

`explore` walks every reachable state and holds the invariants; `Player` plays one session by hand; `Walk`
leads a session in real numbers through random moves; `fault_of` judges a story anew; `MUTANTS` are
machines that are wrong on purpose.
"""

from inspan_core.testing.explorer import SETTINGS, Finding, Report, explore
from inspan_core.testing.mutants import MUTANTS, Mutant, mechanical
from inspan_core.testing.player import Player
from inspan_core.testing.pytest_case import pytest_case
from inspan_core.testing.replay import fault_of
from inspan_core.testing.stories import Chapter, retell, told
from inspan_core.testing.walks import Walk

__all__ = [
    "MUTANTS",
    "SETTINGS",
    "Chapter",
    "Finding",
    "Mutant",
    "Player",
    "Report",
    "Walk",
    "explore",
    "fault_of",
    "mechanical",
    "pytest_case",
    "retell",
    "told",
]
