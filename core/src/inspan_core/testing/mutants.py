"""Machines that are wrong on purpose, to prove that the explorer and the contract oracle can find it.

A mutant changes one entry of the machine's tables for as long as its context lasts. Those in `MUTANTS` are
written by hand, each a mistake that somebody could make, with the promises that it breaks. `mechanical` makes
many more: every rung dropped or swapped with the next, every lesson unlearnt, every rule's handler idle.
"""

from inspan_core.testing.client_mutants import CLIENT_MUTANTS
from inspan_core.testing.mechanical import mechanical
from inspan_core.testing.mutant import Mutant
from inspan_core.testing.release_mutants import RELEASE_MUTANTS
from inspan_core.testing.run_mutants import RUN_MUTANTS

MUTANTS: tuple[Mutant, ...] = (*RUN_MUTANTS, *RELEASE_MUTANTS, *CLIENT_MUTANTS)
"""Mistakes that somebody could make."""

__all__ = ["MUTANTS", "Mutant", "mechanical"]
