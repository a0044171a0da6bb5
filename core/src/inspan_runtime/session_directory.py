"""The session's folder inside the sandbox: how it is removed, and the shell that does it."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from inspan_core.errors import SandboxError, UsageError
from inspan_core.sandbox import ExecResult, Sandbox

OUTPUT_LIMIT_BYTES = 4096
SHELLS = (("sh",), ("/bin/sh",), ("bash",), ("dash",), ("busybox", "sh"))
NOT_RUN = (126, 127)
"""Exit codes of a program that is missing or cannot be run."""


async def run_shell(
    sandbox: Sandbox,
    arguments: Sequence[str],
    *,
    timeout_s: float,
    stdin: bytes = b"",
    cwd: str | None = None,
) -> ExecResult:
    """Run the PATH's ``sh``; where that fails, the system's: a task may have put another in front of it.

    Where a task has removed both, any other shell will do.
    """
    for position, shell in enumerate(SHELLS):
        result = await sandbox.exec(
            [*shell, *arguments],
            stdin=stdin,
            cwd=cwd,
            timeout_s=timeout_s,
            output_limit_bytes=OUTPUT_LIMIT_BYTES,
        )
        if result.exit_code == 0 or (position > 0 and result.exit_code not in NOT_RUN):
            break
    return result


RETIRE_SCRIPT = """
d=$1 fence=$2 root=${1%/*}
plant() { mkdir -p "$root" && { [ -e "$d.retired" ] || [ -L "$d.retired" ] || true > "$d.retired"; }; }
plant || [ "$fence" = drop ] || exit 4
if [ -e "$d" ] || [ -L "$d" ]; then
    rm -rf "$d.removed"
    mv "$d" "$d.removed" 2>/dev/null
    rm -rf "$d.removed" "$d" || exit 5
fi
[ "$fence" = keep ] && exit 0
rm -f "$d.retired"
rmdir "$root" 2>/dev/null
exit 0
"""


async def remove_session_directory(
    sandbox: Sandbox, session_dir: str, *, keep_fence: bool = True, timeout_s: float = 30.0
) -> None:
    """Remove the session's folder, fenced against late launches before it begins to vanish.

    Args:
        session_dir: Absolute, at least two levels deep, without ``..``.
        keep_fence: Whether an empty file stays beside it as a fence: for a launch whose exec may still come.
            Where none can, it need not be possible to write there.
        timeout_s: Seconds for all of it.

    Raises:
        UsageError: `session_dir` does not look like a session's folder.
        SandboxError: It could not be removed.
    """
    plain = posixpath.normpath(session_dir)
    # POSIX gives a path with two leading slashes a meaning of its own, and normpath keeps both.
    fits = plain == session_dir and plain.startswith("/") and not plain.startswith("//")
    if not fits or plain.count("/") < 2 or "\0" in plain:
        raise UsageError(
            f"session folder {session_dir!r}: expected a normal absolute path of two levels or more"
        )
    arguments = ["-c", RETIRE_SCRIPT, "sh", session_dir, "keep" if keep_fence else "drop"]
    # Not in the task's folder, which the task may have removed.
    result = await run_shell(sandbox, arguments, timeout_s=timeout_s, cwd="/")
    if result.exit_code != 0:
        output = result.stderr.decode("utf-8", "replace").strip()[-500:]
        raise SandboxError(f"{session_dir} could not be removed (exit code {result.exit_code}): {output}")
