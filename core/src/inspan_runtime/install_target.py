"""What runs in a sandbox: a probe by `sh`, and the pure reading of what it printed.

The probe needs nothing but a POSIX shell. It writes nothing except where it tries whether a runtime could
live there, and it starts every interpreter that it names, so a version manager's shim is answered by the
real interpreter behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from attrs import frozen

from inspan_core.errors import UnsupportedTarget
from inspan_core.harness import Target
from inspan_runtime.install_shared import SHARED_PATH, WORD_FILE
from inspan_runtime.install_unpacker import MARKER

MOST_READY = 64
DEFAULT_ROOTS = ("/opt/inspan/runtimes", "/var/tmp/inspan-runtimes", "/tmp/inspan-runtimes")
"""Where runtimes may live inside: the first that can be written and run from. All outside task and HOME."""

PYTHON_CANDIDATES = (
    "/opt/inspan/python/bin/python3",
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "python3",
    "python3.13",
    "python3.12",
    "python3.11",
    "python3.10",
    "python3.9",
    "python3.8",
    "python",
)
"""The first place is where a provider may bind an interpreter into images that have none."""

# The modules that the supervisor and the shims load; an image's python3-minimal lacks some of them.
PYTHON_CHECK = (
    "import sys, json, os, select, signal, struct, subprocess, tarfile, tempfile, threading, fcntl; "
    "sys.exit(9) if sys.version_info < (3, 8) else "
    "print(sys.executable + '|' + '.'.join(map(str, sys.version_info[:3])))"
)


@frozen(kw_only=True)
class Probe:
    """A sandbox's target and the folder in which runtimes can live there.

    Attributes:
        target: As hooks see it.
        root: Absolute folder for runtimes, or None when no candidate can be written and run from.
        tried: What was found at each candidate root, for messages.
        ready: Runtimes with a ready marker that stand in a candidate root, best first.
        word: What the host's folder says of itself where the sandbox sees one, or None.
        workdir: ``folder``, ``file`` or ``missing``.
    """

    target: Target
    root: str | None
    tried: str
    ready: tuple[str, ...] = ()
    word: str | None = None
    workdir: str = "folder"


def quote(text: str) -> str:
    """`text` as one word of `sh`."""
    return "'" + text.replace("'", "'\\''") + "'"


def probe_script(roots: Sequence[str], workdir: str, pythons: Sequence[str] = PYTHON_CANDIDATES) -> str:
    """The `sh` script whose output `read_probe` reads.

    Args:
        roots: Candidate folders for runtimes, best first.
        workdir: The task's folder; a root inside it is never used.
        pythons: Candidate interpreters, best first.
    """
    return _probe_script(tuple(roots), workdir, tuple(pythons))


@lru_cache(maxsize=64)
def _probe_script(roots: tuple[str, ...], workdir: str, pythons: tuple[str, ...]) -> str:
    """The same for most sandboxes of a server."""
    programs = " ".join(quote(candidate) for candidate in pythons)
    places = " ".join(quote(root) for root in roots)
    task = quote(workdir.rstrip("/") + "/")
    return f"""
count=0
for root in {places}; do
  for marker in "$root"/*/{MARKER}; do
    [ -f "$marker" ] && [ "$count" -lt {MOST_READY} ] || continue
    count=$((count + 1))
    echo "ready=${{marker%/*}}"
  done
done
word=; {{ read -r word < {SHARED_PATH}/{WORD_FILE}; }} 2>/dev/null && echo "word=$word"
echo "os=$(uname -s 2>/dev/null)"
if [ -d {quote(workdir)} ]; then echo "workdir=folder"
elif [ -e {quote(workdir)} ]; then echo "workdir=file"
else echo "workdir=missing"; fi
echo "arch=$(uname -m 2>/dev/null)"
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null)
[ -n "$glibc" ] || glibc=$(ldd --version 2>&1 | head -n 1)
echo "libc_text=$glibc"
for loader in /lib/ld-musl-*.so.1; do [ -e "$loader" ] && echo "musl=$loader"; done
for candidate in {programs}; do
  found=$(command -v "$candidate" 2>/dev/null) || continue
  answer=$("$found" -I -S -c {quote(PYTHON_CHECK)} 2>/dev/null) || continue
  real=${{answer%%|*}}
  [ "$real" = "$found" ] || answer=$("$real" -I -S -c {quote(PYTHON_CHECK)} 2>/dev/null) || continue
  echo "python=$answer"
  break
done
for root in {places}; do
  case "$root/" in {task}*) echo "tried=$root: inside the workdir"; continue;; esac
  case "${{HOME:-/}}" in /) ;; *) case "$root/" in "${{HOME%/}}"/*)
    echo "tried=$root: inside HOME"; continue;; esac;; esac
  mkdir -p "$root" 2>/dev/null || {{ echo "tried=$root: cannot be made"; continue; }}
  if [ -L "$root" ]; then echo "tried=$root: is a link"; continue; fi
  check="$root/.probe.$$"
  if printf '#!/bin/sh\\nexit 7\\n' 2>/dev/null > "$check" && chmod 700 "$check"; then
    "$check" 2>/dev/null; code=$?
    rm -f "$check"
    [ "$code" = 7 ] && {{ echo "root=$root"; break; }}
    echo "tried=$root: programs do not run there"
  else
    echo "tried=$root: cannot be written"
  fi
done
exit 0
"""


def read_probe(output: str) -> Probe:
    """Read what the probe printed.

    Raises:
        UnsupportedTarget: It does not even name the system: no usable shell.
    """
    found: dict[str, str] = {}
    tried, ready = [], []
    for line in output.splitlines():
        key, separator, value = line.partition("=")
        if not separator:
            continue
        if key == "tried":
            tried.append(value)
        elif key == "ready":
            ready.append(value)
        else:
            found.setdefault(key, value.strip())
    if not found.get("os") or not found.get("arch"):
        raise UnsupportedTarget(
            "the sandbox does not say what it runs on: a POSIX shell with `uname` is needed, "
            f"and the probe printed {output[:200]!r}"
        )
    libc, version = _libc(found.get("libc_text", ""), "musl" in found)
    python, _, python_version = found.get("python", "").partition("|")
    target = Target(
        os=found["os"].lower(),
        arch={"amd64": "x86_64", "arm64": "aarch64"}.get(found["arch"], found["arch"]),
        libc=libc,
        libc_version=version,
        python=python or None,
        python_version=python_version or None,
    )
    return Probe(
        target=target,
        root=found.get("root"),
        tried="; ".join(tried) or "nothing was tried",
        ready=tuple(ready),
        word=found.get("word"),
        workdir=found.get("workdir", "folder"),
    )


def _libc(text: str, has_musl_loader: bool) -> tuple[str, str | None]:
    lowered = text.lower()
    if "musl" in lowered:
        return "musl", None
    if "glibc" in lowered or "gnu libc" in lowered or "gnu c library" in lowered:
        words = [word.strip("()") for word in text.split()]
        version = next((word for word in reversed(words) if word[:1].isdigit()), None)
        return "glibc", version
    return ("musl", None) if has_musl_loader else ("unknown", None)
