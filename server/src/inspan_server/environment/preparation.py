"""What happens inside the sandbox on behalf of the task: preparing the repository, and verifying it."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from inspan_core.errors import ExecTimeout, SandboxCreateError, TooLarge, UnsafePath
from inspan_core.sandbox import ExecResult, Sandbox
from inspan_server.environment.task import Task, TaskFile

GIT_TIMEOUT_S = 60.0
OUTPUT_LIMIT_BYTES = 16 * 1024
# The commit does not depend on the identity, hooks or defaults of whoever prepares the task.
GIT = (
    "git", "-c", "user.name=task", "-c", "user.email=task@localhost", "-c", "commit.gpgsign=false",
    "-c", "init.defaultBranch=main", "-c", "core.hooksPath=/dev/null",
)  # fmt: skip


@frozen(kw_only=True)
class Verification:
    """What the task's tests said.

    Attributes:
        reward: 1.0 when the command exited 0, else 0.0.
        exit_code: None when the command was killed at its deadline.
        output: The end of what it printed, both streams, decoded with replacement.
    """

    reward: float
    exit_code: int | None
    timed_out: bool
    output: str


async def prepare_repository(sandbox: Sandbox, task: Task, workdir: str) -> None:
    """Put the task's files into `workdir` and commit them.

    Raises:
        SandboxCreateError: A command of the preparation failed; holds its output.
        SandboxError: The sandbox failed.
    """
    await _put(sandbox, task.files, workdir)
    await _must(sandbox, (*GIT, "init", "-q"), workdir, GIT_TIMEOUT_S)
    if task.setup:
        await _must(sandbox, task.setup, workdir, task.setup_timeout_s)
    await _must(sandbox, (*GIT, "add", "-A"), workdir, GIT_TIMEOUT_S)
    await _must(sandbox, (*GIT, "commit", "-q", "--allow-empty", "-m", "The task"), workdir, GIT_TIMEOUT_S)


async def verify_repository(sandbox: Sandbox, task: Task, workdir: str) -> Verification:
    """Run the task's tests in the state that the agent left.

    An agent that leaves something in the way of the tests, or makes them run for ever, has failed the
    task: that is a reward of 0, not an error.

    Raises:
        SandboxError: The sandbox failed, which says nothing about the task.
    """
    try:
        await _put(sandbox, task.verify_files, workdir)
    except (UnsafePath, TooLarge) as error:
        return Verification(reward=0.0, exit_code=None, timed_out=False, output=str(error))
    try:
        ended = await sandbox.exec(
            task.verify, timeout_s=task.verify_timeout_s, cwd=workdir, output_limit_bytes=OUTPUT_LIMIT_BYTES
        )
    except ExecTimeout as error:
        return Verification(reward=0.0, exit_code=None, timed_out=True, output=str(error))
    reward = 1.0 if ended.exit_code == 0 else 0.0
    return Verification(reward=reward, exit_code=ended.exit_code, timed_out=False, output=_output(ended))


async def _put(sandbox: Sandbox, files: Mapping[str, TaskFile], workdir: str) -> None:
    for path, file in files.items():
        await sandbox.upload(f"{workdir.rstrip('/')}/{path}", file.data, mode=file.mode)


async def _must(sandbox: Sandbox, argv: tuple[str, ...], workdir: str, timeout_s: float) -> None:
    ended = await sandbox.exec(argv, timeout_s=timeout_s, cwd=workdir, output_limit_bytes=OUTPUT_LIMIT_BYTES)
    if ended.exit_code != 0:
        shown = " ".join(argv)
        raise SandboxCreateError(
            f"preparing the task: {shown!r} exited with {ended.exit_code}: {_output(ended)[-2000:]}"
        )


def _output(ended: ExecResult) -> str:
    return (ended.stdout + ended.stderr).decode("utf-8", "replace").strip()
