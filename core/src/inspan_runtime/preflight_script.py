"""The `sh` script of the preflight: words between @ are filled in, quoted.

A fact that cannot be told is null, and so is a text with characters that JSON would have to escape: the
script has no program to escape them with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from inspan_runtime.install_target import quote

SCRIPT = """
q() {
  case $1 in *[!a-zA-Z0-9_./:+@=,\\ \\(\\)~-]*|'') printf 'null';; *) printf '"%s"' "$1";; esac
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
place() {
  base=$1; while [ ! -d "$base" ] && [ -n "$base" ]; do base=${base%/*}; done; base=${base:-/}
  try=$base/.inspan-try-$$; writes=false runs=false free=null
  if (umask 077; printf '#!/bin/sh\\nexit 7\\n' >"$try") 2>/dev/null; then
    writes=true
    chmod 700 "$try" 2>/dev/null && { "$try" 2>/dev/null; [ $? = 7 ] && runs=true; }
    rm -f -- "$try"
  fi
  room=$(df -Pk "$base" 2>/dev/null | while read -r a b c d e; do size=$d; echo "$size"; done)
  room=${room##*[!0-9]}; [ -n "$room" ] && free=$room
  printf '{"path": '; q "$1"; printf ', "tried": '; q "$base"
  printf ', "writes": %s, "runs": %s, "free_kib": %s}, ' $writes $runs "$free"
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
for one in @places@; do place "$one"; done
printf 'null]}\\n'
"""


def filled(words: Mapping[str, Sequence[str]]) -> str:
    """Return the script with lists of words in the places of their names."""
    return re.sub(r"@(\w+)@", lambda found: quoted(tuple(words[found[1]])), SCRIPT)


@lru_cache(maxsize=256)
def quoted(words: tuple[str, ...]) -> str:
    """The words for the shell; most are the same for every sandbox."""
    return " ".join(quote(one) for one in words)
