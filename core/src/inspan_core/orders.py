"""Which order each run phase gives, and what is known at once because it was given."""

from collections.abc import Callable

from inspan_core.draft import Draft
from inspan_core.effects import (
    AwaitReceipt,
    CancelPending,
    Collect,
    ConnectSandbox,
    CreateSandbox,
    Disconnect,
    Install,
    Launch,
    Order,
    Parse,
    ReleaseExec,
    RemoveFiles,
    Stage,
    StopHarness,
    StopSandbox,
    TakeSlot,
)
from inspan_core.errors import TableError
from inspan_core.session import RunPhase, SandboxFact


def connect(draft: Draft, number: int) -> Order:
    """Create our own sandbox, which may exist from now on, or connect to the supplied one."""
    if draft.owned:
        draft.sandbox = SandboxFact.MAYBE
        return CreateSandbox(number=number, timeout_s=draft.settings.create_timeout_s, key=draft.sandbox_key)
    return ConnectSandbox(number=number, timeout_s=draft.settings.connect_timeout_s)


def install(draft: Draft, number: int) -> Order:
    """Install the runtime. Session files may lie in the sandbox from now on."""
    draft.files = True
    return Install(number=number, timeout_s=draft.settings.install_timeout_s)


def take_slot(draft: Draft, number: int) -> Order:
    """Queue for a concurrency slot, without a bound: the run's deadline has not begun."""
    return TakeSlot(number=number, timeout_s=None)


def stage(draft: Draft, number: int) -> Order:
    """Upload input, supervisor and command."""
    return Stage(number=number, timeout_s=draft.settings.stage_timeout_s, run_timeout_s=draft.run_timeout_s)


def launch(draft: Draft, number: int) -> Order:
    """Launch, once and for all: the deadline begins, and the exec is ours to release."""
    draft.launched = True
    draft.exec_held = True
    draft.deadline_at = draft.at + draft.run_timeout_s
    return Launch(
        number=number,
        timeout_s=draft.run_timeout_s + draft.settings.run_margin_s,
        run_timeout_s=draft.run_timeout_s,
    )


def await_receipt(draft: Draft, number: int) -> Order:
    """Wait until the deadline and its margin; an exec that is over leaves nothing to wait that long for."""
    if draft.exec_returned:
        budget_s = draft.settings.close_step_timeout_s
    elif draft.deadline_at is None:
        budget_s = draft.run_timeout_s + draft.settings.run_margin_s
    else:
        budget_s = max(draft.deadline_at - draft.at, 0.0) + draft.settings.run_margin_s
    return AwaitReceipt(number=number, timeout_s=budget_s)


def cancel_pending(draft: Draft, number: int) -> Order:
    """Cancel the set-up or staging that is in flight."""
    if draft.pending is None:
        raise TableError(f"session {draft.name}: a ladder led to CANCELLING with nothing to cancel")
    return CancelPending(
        number=number, timeout_s=draft.settings.close_step_timeout_s, pending=draft.pending.number
    )


def parse(draft: Draft, number: int) -> Order:
    """Parse the artifacts."""
    return Parse(number=number, timeout_s=draft.settings.parse_timeout_s)


def stop_sandbox(draft: Draft, number: int) -> Order:
    """Have our sandbox stopped."""
    return StopSandbox(number=number, timeout_s=draft.settings.close_step_timeout_s, key=draft.sandbox_key)


def _close_step(
    order: type[StopHarness] | type[Collect] | type[ReleaseExec] | type[RemoveFiles] | type[Disconnect],
) -> Callable[[Draft, int], Order]:
    def give(draft: Draft, number: int) -> Order:
        return order(number=number, timeout_s=draft.settings.close_step_timeout_s)

    return give


ORDERS: dict[RunPhase, Callable[[Draft, int], Order]] = {
    RunPhase.CONNECTING: connect,
    RunPhase.INSTALLING: install,
    RunPhase.QUEUED: take_slot,
    RunPhase.STAGING: stage,
    RunPhase.RUNNING: launch,
    RunPhase.AWAITING: await_receipt,
    RunPhase.STOPPING: _close_step(StopHarness),
    RunPhase.COLLECTING: _close_step(Collect),
    RunPhase.PARSING: parse,
    RunPhase.RELEASING_EXEC: _close_step(ReleaseExec),
    RunPhase.CANCELLING: cancel_pending,
    RunPhase.REMOVING_FILES: _close_step(RemoveFiles),
    RunPhase.DISCONNECTING: _close_step(Disconnect),
    RunPhase.STOPPING_SANDBOX: stop_sandbox,
}

ORDER_PHASES: dict[type, RunPhase] = {
    CreateSandbox: RunPhase.CONNECTING,
    ConnectSandbox: RunPhase.CONNECTING,
    Install: RunPhase.INSTALLING,
    TakeSlot: RunPhase.QUEUED,
    Stage: RunPhase.STAGING,
    Launch: RunPhase.RUNNING,
    AwaitReceipt: RunPhase.AWAITING,
    StopHarness: RunPhase.STOPPING,
    Collect: RunPhase.COLLECTING,
    Parse: RunPhase.PARSING,
    ReleaseExec: RunPhase.RELEASING_EXEC,
    CancelPending: RunPhase.CANCELLING,
    RemoveFiles: RunPhase.REMOVING_FILES,
    Disconnect: RunPhase.DISCONNECTING,
    StopSandbox: RunPhase.STOPPING_SANDBOX,
}
"""The run phase in which each order is in flight."""
