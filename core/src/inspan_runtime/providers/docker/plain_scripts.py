"""The shell scripts of a container without the agent; they need no more than POSIX, setsid and stat."""

from __future__ import annotations

import math
import os
import secrets

# The mark comes in halves: `ps` in the sandbox prints this command line, and must not print the mark.
# Arguments that are no UTF-8 do not survive the engine's command line: they come as octal, behind a half.
DECODE = """
h=$1; m=$1$2; shift 2
for a; do
  shift
  case $a in "$h"*) a=$(printf "${a#"$h"}x"); a=${a%x};; esac
  set -- "$@" "$a"
done
"""

# The command has a session of its own, and so has what keeps its deadline: whoever watches from outside may
# die. It runs in front, for what a shell runs behind has SIGINT and SIGQUIT ignored; the pipe's other half
# gets its process, then its end. The mark, with how it ended, follows its last byte on both streams: a child
# may hold them open.
RUN = """
t=$1; n=$2; d=$3; shift 3
exec 3<&0 4>&1 5>&2 </dev/null
x=
kills() {
  r=0
  for f in /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events; do
    [ ! -r "$f" ] || while read -r a b; do [ "$a" != oom_kill ] || r=$b; done <"$f"
  done
}
kills; before=$r
trap 'x=t' USR1
finish() { printf '%s%s\\n' "$m" "$1" >&4; printf '%s%s\\n' "$m" "$1" >&5; exit 0; }
command -v setsid >/dev/null 2>&1 || finish s
[ -z "$d" ] || cd -- "$d" || finish 126
exec >/dev/null 2>&1
{
  (
    exec 6>&1 <&3 >&4 2>&5 3<&- 4>&- 5>&-
    exec setsid sh -c 'printf "%sp%s\\n" "$0" "$$" >&2; echo "$$" >&6; exec env "$@" 6>&-' "$m" "$@"
  )
  echo "$?"
} | {
  exec 3<&- 4>&- 5>&-
  read -r c
  setsid sh -c 'sleep "$1" || sleep "$2"; kill -USR1 "$4"; kill -9 -"$3" || kill -9 "$3"' \\
    sh "$t" "$n" "$c" "$$" </dev/null &
  w=$!
  read -r s
  kill -9 -"$w" || kill -9 "$w"
  exit "${s:-137}"
}
s=$?
kills
[ "$r" = "$before" ] || s=${s}m
finish "${x:-$s}"
"""

# Around `RUN`, for an engine that closes its pipes when the shell ends (a child that still writes would die),
# and that loses what the command said if it has not read all of its input by then.
RELAY = """
relay() { trap '' PIPE; cat; exec cat >/dev/null 2>&1; }
run() {
  "$@"
  exec 3<&0 >/dev/null 2>&1
  cat <&3 & c=$!
  setsid sh -c 'sleep 10; kill -9 "$1"' sh "$c" 3<&- & w=$!
  wait "$c"
  kill -9 -"$w" || kill -9 "$w"
}
{ { run "$@" 2>&1 >&8 8>&- | relay >&9 8>&- 9>&-; } 8>&1 9>&2 | relay 9>&-; }
"""

TIMED_OUT, NO_SETSID, OUT_OF_MEMORY = b"t", b"s", b"m"  # The last one follows an exit code.
NOT_FOUND, UNSAFE, TOO_LARGE, SHORT = 41, 42, 43, 44

# path, mode, size, part: received beside its name, then renamed.
UPLOAD = """
p=$1; b=${p##*/}; d=${p%/*}; d=${d:-/}; q=${d%/}/$4
refuse() { echo "$1" >&2; rm -f -- "$q"; exit 42; }
taken() {
  [ ! -L "$p" ] || refuse 'it is a symbolic link'
  [ ! -e "$p" ] || [ -f "$p" ] || refuse 'it is not a regular file'
}
case $b in ''|.|..) refuse 'it does not name a file';; esac
mkdir -p -- "$d" || exit 1
taken
(umask 077; set -C; cat >"$q") || exit 1
[ "$(stat -c %s -- "$q")" = "$3" ] || { rm -f -- "$q"; exit 44; }
chmod -- "$2" "$q" || { rm -f -- "$q"; exit 1; }
taken
mv -f -T -- "$q" "$p" || { rm -f -- "$q"; exit 1; }
"""

# path, limit, "tail" or "": the size goes to stderr, the content (or its tail) to stdout.
DOWNLOAD = """
p=$1; l=$2
case ${p##*/} in ''|.|..) exit 42;; esac
[ ! -L "$p" ] || { echo 'it is a symbolic link' >&2; exit 42; }
[ -e "$p" ] || exit 41
[ -f "$p" ] || { echo 'it is not a regular file' >&2; exit 42; }
exec 3<"$p" || exit 1
[ "$(stat -L -c %d:%i /proc/self/fd/3)" = "$(stat -c %d:%i -- "$p")" ] || {
  echo 'it is a symbolic link' >&2; exit 42
}
s=$(stat -L -c %s /proc/self/fd/3) || exit 1
echo "$s" >&2
if [ "$s" -le "$l" ]; then
  exec head -c "$l" <&3
fi
[ -n "$3" ] || exit 43
o=$((s - l)); r=$((o % 65536))
dd bs=65536 skip=$((o / 65536)) <&3 2>/dev/null | head -c $((l + r)) | tail -c +$((r + 1))
"""

# A part that an upload left when it was cut off.
DISCARD = 'rm -f -- "$1"'

# What was announced as the command's process leads its group, once it has called setsid.
KILL = 'kill -9 -"$1" || kill -9 "$1"'


def new_mark() -> tuple[str, str]:
    """Return the halves of a mark that nothing else contains."""
    return secrets.token_hex(16), secrets.token_hex(16)


def arguments(script: str, halves: tuple[str, str], values: list[bytes]) -> list[str]:
    """Return the argv of a script with arguments of any bytes.

    Args:
        script: One of this module's.
        halves: Its mark.
        values: The script's arguments.
    """
    return ["sh", "-c", DECODE + script, "sh", *halves, *(_encoded(one, halves[0]) for one in values)]


def relayed(argv: list[str]) -> list[str]:
    """Return the argv of `RELAY` around another."""
    return ["sh", "-c", RELAY, "sh", *argv]


def _encoded(value: bytes, half: str) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return half + "".join(f"\\{byte:03o}" for byte in value)


def run_values(argv: list[bytes], env: list[bytes], cwd: bytes, timeout_s: float) -> list[bytes]:
    """Return the arguments of `RUN`.

    Args:
        argv: Program and arguments.
        env: ``NAME=VALUE`` each.
        cwd: Absolute folder, or empty for the container's own.
        timeout_s: The deadline; where fractions of seconds are not understood, the next whole one.
    """
    return [b"%.3f" % timeout_s, b"%d" % math.ceil(timeout_s), cwd, *env, *argv]


def part_name() -> bytes:
    """Return the name of a file that is not whole yet."""
    return b".inspan-" + os.urandom(8).hex().encode() + b".part"
