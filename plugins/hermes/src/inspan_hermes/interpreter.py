"""Which of a sandbox's interpreters can run Hermes: a probe by `sh`, and the pure reading of its output."""

from __future__ import annotations

from attrs import frozen

from inspan_core.errors import ExecTimeout, UnsupportedTarget
from inspan_core.sandbox import Sandbox

OLDEST, NEWEST = (3, 11), (3, 13)
CANDIDATES = (
    "/opt/inspan/python/bin/python3",
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "python3",
    "python3.13",
    "python3.12",
    "python3.11",
    "python",
)
PROBE_TIMEOUT_S = 60.0
# Parts of the standard library that images leave out and Hermes needs; no free-threaded build, whose
# extension modules are others.
_CHECK = (
    "import sys; v = '.'.join(map(str, sys.version_info[:3])); "
    "print('seen=' + sys.executable + '|' + v); "
    "assert (3, 11) <= sys.version_info < (3, 14) and sys.implementation.name == 'cpython'; "
    "assert not sys.abiflags; "
    "import ssl, sqlite3, ctypes, zlib, zoneinfo, venv, concurrent.futures, asyncio; "
    "print('fits=' + sys.executable + '|' + v)"
)
SCRIPT = f"""
for candidate in "$@"; do
  found=$(command -v "$candidate" 2>/dev/null) || continue
  answer=$("$found" -I -S -c "{_CHECK}" 2>/dev/null)
  echo "$answer"
  case "$answer" in *fits=*) break;; esac
done
"""


@frozen(kw_only=True)
class Interpreter:
    """A fitting interpreter.

    Attributes:
        path: Absolute path inside the sandbox.
        minor: For example ``"3.11"``.
    """

    path: str
    minor: str


async def find_interpreter(sandbox: Sandbox) -> Interpreter:
    """Look for an interpreter that Hermes runs on.

    Raises:
        UnsupportedTarget: There is none; names what was found and what is supported.
    """
    named = sandbox.descriptor.get("python")
    candidates = (named, *CANDIDATES) if isinstance(named, str) else CANDIDATES
    try:
        result = await sandbox.exec(
            ["sh", "-c", SCRIPT, "sh", *candidates],
            timeout_s=PROBE_TIMEOUT_S,
            cwd="/",
            output_limit_bytes=64 * 1024,
        )
    except ExecTimeout as error:
        raise UnsupportedTarget("the sandbox's interpreters do not answer within 60 s") from error
    return read_interpreter(result.stdout.decode("utf-8", "replace"))


def read_interpreter(output: str) -> Interpreter:
    """Read what the probe printed.

    Raises:
        UnsupportedTarget: No interpreter fits.
    """
    seen = []
    for line in output.splitlines():
        key, _, value = line.partition("=")
        path, _, version = value.partition("|")
        if key == "fits" and path.startswith("/"):
            return Interpreter(path=path, minor=".".join(version.split(".")[:2]))
        if key == "seen":
            seen.append(f"{version} at {path}")
    found = ", ".join(dict.fromkeys(seen)) or "none"
    raise UnsupportedTarget(
        f"hermes needs CPython 3.11 to 3.13 with its whole standard library; found: {found}; supported: such "
        "an interpreter in PATH, in /usr/bin or /usr/local/bin, or at /opt/inspan/python/bin/python3"
    )
