"""The shim's library as data, for plugins to upload beside their ``sandbox_runner.py``.

A runner begins with the folder that these files are in, and then imports as anywhere else::

    import os
    import sys

    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
    from inspan_core.shim import Events, main

    if __name__ == "__main__":
        sys.exit(main(__file__))
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources


@cache
def shim_files() -> Mapping[str, str]:
    """Names below the session folder to their text."""
    source = resources.files("inspan_core").joinpath("shim.py").read_text(encoding="utf-8")
    return {"lib/inspan_core/shim.py": source}
