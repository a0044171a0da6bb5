"""The shell script that waits for a receipt inside a sandbox."""

from __future__ import annotations

WAIT_SCRIPT = """
now() { read -r up rest < /proc/uptime; up=${up%%.*}; }
there() { [ -e "$1" ] || [ -L "$1" ]; }
found() { [ -e "$d/cleanup.json" ] && { echo receipt; exit 0; }; }
dead() {
    { [ -f "$d/supervisor.pid" ] && read -r pid < "$d/supervisor.pid"; } ||
        { [ -f "$d/launch.claim" ] && read -r pid < "$d/launch.claim"; } || return 1
    [ -n "$pid" ] || return 1
    [ -d "/proc/$pid" ] || return 0
    read -r row < "/proc/$pid/stat"
    case $row in "$pid (~~) T "*) kill -CONT "$pid";; esac
    return 1
} 2> /dev/null
lurks() {
    for p in /proc/[0-9]*; do
        read -r name < "$p/comm" && [ "$name" = "~~" ] || continue
        ls -l "$p/fd" | grep -qF -e "-> $d/supervisor.pid" && { kill -CONT "${p#/proc/}"; return 0; }
    done
    return 1
} 2> /dev/null
plant() {
    there "$d.retired" && [ ! -e "$d" ] && { echo retired; exit 0; }
    mkdir -p "$d" && { there "$d/stop.request" || : > "$d/stop.request"; } || exit 3
}
stands() { [ "$request" != stop ] || there "$d/stop.request"; }
await_end() {
    left=$((end - up))
    [ $left -gt 5 ] && left=5
    [ -f "$d/supervisor.pid" ] && stands && flock -s -w $left 9 9< "$d/supervisor.pid"
} 2> /dev/null
case $request in
stop) plant;;
fence) there "$d/launch.claim" || plant;;
esac
now; end=$((up + wait)); pause=0.005; calm=0
while :; do
    found
    if there "$d/launch.claim" || ! there "$d/stop.request"; then
        calm=0
        there "$d/launch.claim" && dead && { found; echo dead; exit 0; }
    else
        calm=$((calm + 1))
        [ $calm -ge 6 ] && { lurks || { found; echo never; exit 0; }; calm=0; }
    fi
    now
    [ "$up" -ge "$end" ] && { echo waiting; exit 0; }
    stands || plant
    await_end && found
    sleep $pause 2> /dev/null || sleep 1
    case $pause in
    0.005) pause=0.01;; 0.01) pause=0.02;; 0.02) pause=0.05;; 0.05) pause=0.1;; *) pause=0.25;;
    esac
done
"""
"""Waits inside the sandbox for the receipt, in POSIX sh (dash and busybox too), and prints one word.

Where there is a ``flock`` command it sleeps until the supervisor lets go of its lock, which it does with the
receipt or its death. Else it looks again and again, with pauses that grow, so that neither a quick end is
noticed late nor a slow one costs much. That nothing was ever launched is believed only when a stop stood
there without a claim for some time: where a tool deletes the folder over and over, a living supervisor makes
the claim again at once, and one that was stopped meanwhile is found by its name and its open file. A stopped
supervisor is continued. ``/proc/uptime`` is monotonic, which ``date`` is not. The script comes on stdin: in
an argv, a task's pkill could find the words in it.
"""
