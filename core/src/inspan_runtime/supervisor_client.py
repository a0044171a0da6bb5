"""The controller's side of the supervisor: everything through files, with a sandbox's exec, upload, download.

A stop request is a file: planted before a launch it fences that launch for good, planted during a run it ends
it. The supervisor claims before it looks for the stop, and we plant the stop before we look for the claim, so
of two that race one always sees the other.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from math import ceil

import anyio
from attrs import frozen

from inspan_core.errors import (
    EvidenceMissing,
    HarnessTerminationError,
    SandboxError,
    SandboxGone,
    TooLarge,
    UnsafePath,
    UsageError,
)
from inspan_core.harness import SandboxCommand
from inspan_core.receipts import (
    PROCESSES_LIMIT_BYTES,
    RECEIPT_LIMIT_BYTES,
    CleanupReceipt,
    ProcessesReport,
    parse_cleanup_receipt,
    parse_processes,
)
from inspan_core.sandbox import Sandbox
from inspan_runtime.pauses import FIRST_RETRY_S, LONGEST_RETRY_S, spread
from inspan_runtime.session_directory import RETIRE_SCRIPT, remove_session_directory, run_shell
from inspan_runtime.wait_script import WAIT_SCRIPT
from inspan_supervisor import (
    COMMAND_FILE,
    LOADER,
    PROCESSES_FILE,
    RECEIPT_FILE,
    STOP_FILE,
    SUPERVISOR_FILE,
    supervisor_source,
)

__all__ = [
    "RETIRE_SCRIPT",
    "WAIT_SCRIPT",
    "NeverLaunched",
    "SupervisionTimeouts",
    "await_receipt",
    "read_processes",
    "read_receipt",
    "read_text",
    "remove_session_directory",
    "stop_and_confirm_cleanup",
    "supervised_launch_command",
    "supervision_timeouts",
    "upload_text",
    "write_command",
]

EXEC_MARGIN_S = 30.0
STEP_MARGIN_S = 5.0
SPARE_S = STEP_MARGIN_S + 2.0
LOOK_TIMEOUT_S = 10.0
CLAIM_GRACE_S = 2.0
LONGEST_WAIT_S = 20.0
ENVIRONMENT_LIMIT_BYTES = 256 * 1024

ENDS = {"dead": "the supervisor died without a receipt", "retired": "the session's folder was removed"}


@frozen
class NeverLaunched:
    """No launch was claimed, and a late one is fenced."""


@frozen(kw_only=True)
class SupervisionTimeouts:
    """Nested budgets in seconds, each larger than what it contains.

    Attributes:
        run_s: The harness.
        grace_s: From SIGTERM to SIGKILL, part of `cleanup_s`.
        cleanup_s: Stopping and draining.
        exec_s: The provider's hard bound on the supervisor's exec.
    """

    run_s: float
    grace_s: float
    cleanup_s: float
    exec_s: float


def supervision_timeouts(
    run_s: float, *, grace_s: float = 5.0, cleanup_s: float = 15.0
) -> SupervisionTimeouts:
    """The budgets around a run.

    Raises:
        UsageError: One is not above zero, or the grace does not fit into the clean-up.
    """
    if run_s <= 0 or grace_s < 0 or cleanup_s <= grace_s:
        raise UsageError(
            f"run_s={run_s}, grace_s={grace_s}, cleanup_s={cleanup_s}: "
            "expected run_s > 0, grace_s >= 0, cleanup_s > grace_s"
        )
    exec_s = run_s + cleanup_s + EXEC_MARGIN_S
    return SupervisionTimeouts(run_s=run_s, grace_s=grace_s, cleanup_s=cleanup_s, exec_s=exec_s)


async def upload_text(sandbox: Sandbox, *, path: str, text: str, mode: int = 0o600) -> None:
    """Write a text file inside the sandbox, atomically."""
    await sandbox.upload(path, text.encode("utf-8"), mode=mode)


async def read_text(
    sandbox: Sandbox, *, path: str, limit_bytes: int = 1024 * 1024, tail: bool = False
) -> str:
    """Read a text file of the sandbox, bounded; undecodable bytes are replaced.

    Raises:
        FileNotFoundError, UnsafePath, TooLarge: See `Sandbox.download`.
    """
    content = await sandbox.download(path, limit_bytes=limit_bytes, tail=tail)
    return content.data.decode("utf-8", "replace")


async def write_command(
    sandbox: Sandbox,
    session_dir: str,
    command: SandboxCommand,
    *,
    cwd: str,
    timeout_s: float,
    grace_s: float,
    cleanup_timeout_s: float,
    drain: str = "seed",
) -> None:
    """Put the supervisor and its command into the session's folder.

    The harness gets the sandbox's own environment with the command's variables over it. Both travel in a
    file of mode 0600 that the supervisor deletes, never in an argv.
    """
    environment = await _sandbox_environment(sandbox)
    body = {
        "argv": list(command.argv),
        "env": {**environment, **command.env},
        "cwd": cwd,
        "timeout_s": timeout_s,
        "grace_s": grace_s,
        "cleanup_timeout_s": cleanup_timeout_s,
        "drain": drain,
    }
    await sandbox.upload(f"{session_dir}/{SUPERVISOR_FILE}", supervisor_source(), mode=0o600)
    await upload_text(sandbox, path=f"{session_dir}/{COMMAND_FILE}", text=json.dumps(body))


async def _sandbox_environment(sandbox: Sandbox) -> Mapping[str, str]:
    result = await sandbox.exec(
        ["env", "-0"], timeout_s=LOOK_TIMEOUT_S, output_limit_bytes=ENVIRONMENT_LIMIT_BYTES
    )
    if result.exit_code != 0 or result.stdout_truncated:
        # busybox has no -0 in old versions; values with line breaks do not survive there.
        result = await sandbox.exec(
            ["env"], timeout_s=LOOK_TIMEOUT_S, output_limit_bytes=ENVIRONMENT_LIMIT_BYTES
        )
        entries = result.stdout.split(b"\n")
    else:
        entries = result.stdout.split(b"\0")
    pairs = (entry.decode("utf-8", "surrogateescape").partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs if name and name != "_"}


def supervised_launch_command(python: str, session_dir: str) -> list[str]:
    """The command that runs the supervisor in place.

    Nothing is claimed before the interpreter has loaded it. One that cannot, or a folder that is claimed,
    retired or has a stop request, ends it with the reason on stderr. From the claim on, all output goes to
    ``output.log``, and before the harness starts the command line has turned neutral.

    Args:
        python: Absolute path of an interpreter inside, CPython 3.8 or later.
        session_dir: Absolute path of the session's folder inside.
    """
    return [python, "-I", "-S", "-c", LOADER, f"{session_dir}/{SUPERVISOR_FILE}", session_dir]


async def read_receipt(sandbox: Sandbox, session_dir: str) -> CleanupReceipt | None:
    """The receipt, or None while there is none.

    Raises:
        EvidenceMissing: There is something by its name that is no receipt.
        SandboxError: It could not be looked for.
    """
    try:
        content = await sandbox.download(
            f"{session_dir}/{RECEIPT_FILE}", limit_bytes=RECEIPT_LIMIT_BYTES, timeout_s=LOOK_TIMEOUT_S
        )
    except FileNotFoundError:
        return None
    except (UnsafePath, TooLarge) as error:
        raise EvidenceMissing(f"the receipt cannot be read: {error}") from error
    return parse_cleanup_receipt(content.data)


async def read_processes(sandbox: Sandbox, session_dir: str) -> ProcessesReport | None:
    """The report of processes; None when it cannot be had: it proves nothing and may cost nothing."""
    try:
        content = await sandbox.download(
            f"{session_dir}/{PROCESSES_FILE}", limit_bytes=PROCESSES_LIMIT_BYTES, timeout_s=LOOK_TIMEOUT_S
        )
    except SandboxGone:
        raise
    except (FileNotFoundError, SandboxError):
        return None
    return parse_processes(content.data)


async def stop_and_confirm_cleanup(
    sandbox: Sandbox, session_dir: str, *, timeout_s: float
) -> CleanupReceipt | NeverLaunched:
    """Plant the stop request and wait for the receipt.

    Args:
        timeout_s: Seconds for all of it.

    Returns:
        The confirmed receipt, or `NeverLaunched`: nothing was claimed, and nothing ever will be.

    Raises:
        HarnessTerminationError: The receipt is negative, which is final; the error carries it.
        EvidenceMissing: There is no well-formed receipt in time, or the supervisor died without one.
        SandboxGone: The sandbox no longer exists.
    """
    found = await _wait(sandbox, session_dir, request="stop", timeout_s=timeout_s)
    if isinstance(found, CleanupReceipt) and not found.cleanup_confirmed:
        message = f"the harness was not proven stopped: {found.error or 'the supervisor gives no reason'}"
        raise HarnessTerminationError(message, receipt=found)
    return found


async def await_receipt(
    sandbox: Sandbox, session_dir: str, *, timeout_s: float, launch_over: bool
) -> CleanupReceipt | NeverLaunched:
    """Wait for the receipt, positive or not, without disturbing a run; where nothing was claimed, fence.

    Args:
        timeout_s: Seconds to wait at most.
        launch_over: The launch's exec has returned: what it did not claim by now it never will.

    Raises:
        EvidenceMissing, SandboxGone: As for `stop_and_confirm_cleanup`.
    """
    began = anyio.current_time()
    if launch_over:
        # Nearly always it is there: to have the sandbox look for it first would be another command.
        receipt = None
        try:
            with anyio.move_on_after(timeout_s / 2):  # One that hangs leaves time for others.
                receipt = await read_receipt(sandbox, session_dir)
        except SandboxGone:
            raise
        except SandboxError:
            pass
        if receipt is not None:
            return receipt
    else:
        # A launch whose exec was lost may still be on its way to its claim.
        try:
            return await _wait(sandbox, session_dir, request="look", timeout_s=min(CLAIM_GRACE_S, timeout_s))
        except EvidenceMissing:
            pass
    left_s = timeout_s - (anyio.current_time() - began)
    return await _wait(sandbox, session_dir, request="fence", timeout_s=left_s)


async def _wait(
    sandbox: Sandbox, session_dir: str, *, request: str, timeout_s: float
) -> CleanupReceipt | NeverLaunched:
    """Look until there is evidence; a failed look is not a failed run."""
    deadline = anyio.current_time() + timeout_s
    trouble, pause_s = "the supervisor has not written one yet", FIRST_RETRY_S
    with anyio.move_on_after(timeout_s):
        while (left_s := deadline - anyio.current_time()) > 0:
            # A shell that hangs leaves time for a look without it.
            wait_s = min(left_s - SPARE_S if left_s > 1.5 * SPARE_S else left_s, LONGEST_WAIT_S)
            try:
                word = await _look(sandbox, session_dir, request=request, wait_s=wait_s)
                receipt = await read_receipt(sandbox, session_dir) if word == "receipt" else None
            except SandboxGone:
                raise
            except SandboxError as error:
                trouble = str(error)
                receipt = await _read_without_shell(sandbox, session_dir, request=request)
                if receipt is not None:
                    return receipt
                await anyio.sleep(min(spread(pause_s, session_dir), max(deadline - anyio.current_time(), 0)))
                pause_s = min(pause_s * 2, LONGEST_RETRY_S)
                continue
            if word == "never":
                return NeverLaunched()
            if receipt is not None:
                return receipt
            if word == "receipt":
                raise EvidenceMissing("the receipt vanished while it was read")
            if word != "waiting":
                raise EvidenceMissing(ENDS[word])
    raise EvidenceMissing(f"no receipt within {timeout_s:g} s: {trouble}")


async def _read_without_shell(sandbox: Sandbox, session_dir: str, *, request: str) -> CleanupReceipt | None:
    """Where a task broke the sandbox's shell: ask for the stop by upload, and read what there is."""
    try:
        if request == "stop":
            await sandbox.upload(f"{session_dir}/{STOP_FILE}", b"", timeout_s=LOOK_TIMEOUT_S)
        return await read_receipt(sandbox, session_dir)
    except SandboxGone:
        raise
    except (SandboxError, EvidenceMissing):
        return None


async def _look(sandbox: Sandbox, session_dir: str, *, request: str, wait_s: float) -> str:
    """Run the waiting script once; returns its word.

    Raises:
        SandboxError: It could not be run, or something in the sandbox killed it.
    """
    variables = f"d={shlex.quote(session_dir)} wait={ceil(wait_s)} request={request}\n"
    script = (variables + WAIT_SCRIPT).encode("utf-8")
    result = await run_shell(sandbox, [], stdin=script, cwd="/", timeout_s=wait_s + STEP_MARGIN_S)
    word = result.stdout.decode("ascii", "replace").strip()
    if result.exit_code == 0 and word in ("receipt", "never", "waiting", *ENDS):
        return word
    output = result.stderr.decode("utf-8", "replace").strip()[-500:]
    raise SandboxError(f"the wait for the receipt ended with exit code {result.exit_code}: {output}")
