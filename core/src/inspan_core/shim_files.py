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

FILES = ("shim.py", "tool_bridge.py")


@cache
def shim_files() -> Mapping[str, str]:
    """Names below the session folder to their text."""
    package = resources.files("inspan_core")
    return {f"lib/inspan_core/{name}": package.joinpath(name).read_text(encoding="utf-8") for name in FILES}
