"""The environment of a sandbox's commands: an allow-list of our own, nothing of the server's."""

from __future__ import annotations

import os
from collections.abc import Mapping

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def default_cache_dir() -> str:
    """Return ``inspan`` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "inspan")


def command_environment(*, home: str, extra: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return the variables that every command gets.

    Args:
        home: Its HOME.
        extra: The specification's own variables; they win.
    """
    variables = {
        "PATH": PATH,
        "HOME": home,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "SHELL": "/bin/sh",
        **extra,
    }
    return {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}
