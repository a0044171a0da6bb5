"""The Python that runs keepers and agents: a real one, not a version manager's shim."""

from __future__ import annotations

import os
import sys

from attrs import frozen


@frozen(kw_only=True)
class Interpreter:
    """An interpreter of this process's version.

    Attributes:
        path: Its executable, links resolved.
        prefix: The folder that holds its library too.
    """

    path: str
    prefix: str


def own_interpreter() -> Interpreter:
    """Return the interpreter that runs this process, out of any virtual environment."""
    path = os.path.realpath(sys.executable)
    return Interpreter(path=path, prefix=os.path.realpath(sys.base_prefix))
