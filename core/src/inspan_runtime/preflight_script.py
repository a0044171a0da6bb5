"""The `sh` script of the preflight: words between @ are filled in, quoted.

A fact that cannot be told is null, and so is a text with characters that JSON would have to escape: the
script has no program to escape them with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from inspan_runtime.install_shared import SHARED_PATH, WORD_FILE
from inspan_runtime.install_unpacker import MARKER

MOST_READY = 64
"""How many runtimes that are there are told of: a task may have made thousands of folders."""

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

# Each interpreter that is named was started, so a version manager's shim is answered by what is behind it.
SCRIPT = """
q() {
  case $1 in ''|*[\\"\\\\[:cntrl:]]*) printf 'null';; *) printf '"%s"' "$1";; esac
}
pairs() {
  for one; do
    at=$(command -v "$one" 2>/dev/null) || at=
    case $at in /*) ;; '') ;; *) at=$one;; esac
    printf '%s: ' "$(q "$one")"; q "$at"; printf ', '
  done
}
libc=none version=
{ while read -r line; do
  case $line in *ld-musl*) libc=musl;; *ld-linux*|*/libc.so.6|*/libc-2.*) libc=glibc;; esac
done </proc/self/maps; } 2>/dev/null
[ $libc = glibc ] || for loader in /lib/ld-musl-*.so.1; do
  [ -e "$loader" ] && libc=musl && version=$("$loader" 2>&1 | while read -r a b c; do
    [ "$a" = Version ] && echo "$b"; done)
done
[ $libc = musl ] || for loader in /lib64/ld-linux-*.so.* /lib/ld-linux-*.so.* /lib/*/ld-linux-*.so.*; do
  [ -e "$loader" ] || continue
  libc=glibc; line=$("$loader" --version 2>/dev/null | while read -r line; do echo "$line"; break; done)
  case $line in *GLIBC\\ *) version=${line#*GLIBC };; *version\\ *) version=${line##*version };; esac
  version=${version%%[!0-9.]*}; version=${version%.}
  [ -n "$version" ] || version=$(getconf GNU_LIBC_VERSION 2>/dev/null) && version=${version#glibc }
  break
done
python=
for candidate in @pythons@; do
  found=$(command -v "$candidate" 2>/dev/null) || continue
  answer=$("$found" -I -S -c @python_check@ 2>/dev/null) || continue
  real=${answer%%|*}
  [ "$real" = "$found" ] || answer=$("$real" -I -S -c @python_check@ 2>/dev/null) || continue
  python=$answer; break
done
ca=
for one in @certificates@; do [ -s "$one" ] && ca=$one && break; done
try_place() {
  try=$base/.inspan-try-$$
  if (umask 077; set -C; printf '#!/bin/sh\\nexit 7\\n' >"$try") 2>/dev/null; then
    writes=true
    chmod 700 "$try" 2>/dev/null && { "$try" 2>/dev/null; [ $? = 7 ] && runs=true; }
  fi
  rm -f -- "$try" 2>/dev/null
  room=$(df -Pk "$base" 2>/dev/null | while read -r a b c d e; do size=$d; echo "$size"; done)
  room=${room##*[!0-9]}; [ -n "$room" ] && free=$room
}
place() {
  base=$1 barred=$2 writes=false runs=false free=null
  while [ ! -e "$base" ] && [ ! -L "$base" ] && [ -n "$base" ]; do base=${base%/*}; done; base=${base:-/}
  [ -d "$base" ] || barred=${barred:-"lies below $base, which is no folder"}
  [ -n "$barred" ] || try_place
  printf '{"path": '; q "$1"; printf ', "tried": '; q "$base"
  printf ', "writes": %s, "runs": %s, "free_kib": %s, "barred": ' $writes $runs "$free"
  q "$barred"; printf '}, '
}
printf '{"os": '; q "$(uname -s 2>/dev/null)"
printf ', "arch": '; q "$(uname -m 2>/dev/null)"
printf ', "libc": '; q "$libc"
printf ', "libc_version": '; q "$version"
printf ', "user": '; q "$(id -u 2>/dev/null)"
printf ', "python": '; q "${python%%|*}"
case $python in *'|'*) printf ', "python_version": '; q "${python##*|}";; esac
printf ', "certificates": '; q "$ca"
printf ', "clock": '; q "$(date +%s 2>/dev/null)"
printf ', "shells": {'; pairs @shells@
printf '"": null}, "programs": {'; pairs @programs@
printf '"": null}, "places": ['
for one in @places@; do place "$one" ''; done
printf 'null], "roots": ['
for root in @roots@; do
  barred=
  case $root/ in @task@*) barred='inside the workdir';; esac
  case ${HOME:-/} in /) ;; *) case $root/ in "${HOME%/}"/*) barred='inside HOME';; esac;; esac
  [ -L "$root" ] && barred='is a link'
  place "$root" "$barred"
  [ $runs = true ] && break
done
printf 'null], "ready": ['; count=0
for root in @roots@; do
  for marker in "$root"/*/@marker@; do
    [ -f "$marker" ] && [ "$count" -lt @most_ready@ ] || continue
    count=$((count + 1)); q "${marker%/*}"; printf ', '
  done
done
word=; [ -f @word_file@ ] && { read -r word <@word_file@; } 2>/dev/null
printf 'null], "word": '; q "$word"
if [ -d @workdir@ ]; then kind=folder; elif [ -e @workdir@ ]; then kind=file; else kind=missing; fi
printf ', "workdir": "%s"}\\n' $kind
"""


_PARTS = tuple(re.split(r"@(\w+)@", SCRIPT))
"""Cut up once, for each seed fills it in: every second part is the name of words."""


def preflight_script(
    *,
    places: Sequence[str],
    roots: Sequence[str],
    workdir: str,
    programs: Sequence[str],
    shells: Sequence[str],
    certificates: Sequence[str],
    pythons: Sequence[str],
) -> str:
    """Return the `sh` script that prints the facts as one JSON object.

    Args:
        places: Folders that files will be put into.
        roots: Candidate folders for runtimes, best first; the first that does is the last that is tried.
        workdir: The task's folder; a root inside it is never used, unless it is all there is.
        programs, shells: Names to look for.
        certificates: Candidate files, best first.
        pythons: Candidate interpreters, best first.
    """
    words = {
        "places": places,
        "roots": roots,
        "workdir": (workdir,),
        "task": (workdir.rstrip("/") + "/" if workdir.strip("/") else "//",),
        "programs": programs,
        "shells": shells,
        "certificates": certificates,
        "pythons": pythons,
        "python_check": (PYTHON_CHECK,),
        "marker": (MARKER,),
        "most_ready": (str(MOST_READY),),
        "word_file": (f"{SHARED_PATH}/{WORD_FILE}",),
    }
    parts = list(_PARTS)
    parts[1::2] = [_quoted(tuple(words[name])) for name in _PARTS[1::2]]
    return "".join(parts)


def quote(text: str) -> str:
    """`text` as one word of `sh`."""
    return "'" + text.replace("'", "'\\''") + "'"


@lru_cache(maxsize=256)
def _quoted(words: tuple[str, ...]) -> str:
    """The words for the shell; most are the same for every sandbox."""
    return " ".join(quote(one) for one in words)
