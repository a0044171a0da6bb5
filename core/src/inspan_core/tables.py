"""The whole truth about a session, in three tables. Read this page first.

*A session* is the life of one agent session: a client seeds it, activates it once, closes it. *The run* is
what happens in its sandbox meanwhile. The machine (`inspan_core.machine.step`) is a pure function over both:
it knows no clock, no network and no sandbox, only facts that it was told and orders that it gave.

What each session phase waits for:

    NEW            no record: a seed, or a close that comes before its seed
    SEEDING        the sandbox and the harness runtime in it
    UNWINDING      a set-up that failed, or was cut off by a restart, to be undone; its seeds still wait
    READY          the activation
    ACTIVE         the end of the one run; identical activations join it
    FINISHED       close; the result or error is retained, and the sandbox kept
    SETUP_FAILED   close, or a timed retry: the set-up could be undone no further
    CLOSING        finalization and release; every close joins
    CLOSE_FAILED   close, or a timed retry: a step of the release failed
    CLOSED         the end of the window in which the close answer is given again
    FENCED         the same, for an id that was closed before it was seeded

How an event is worked:

1. A *request* first meets CHECKS (`inspan_core.checks`): findings that refuse it in whatever phase.
2. A request or notice then meets its row in SESSION: a rule with its handler and the phases that it may lead
   to, or the reason why it is ignored or refused. There is no default row.
3. An *answer* meets LEARN under the run phase whose order it answers: it sets facts, and decides nothing.
4. Where a handler or an answer calls for it, the phase's ladder in LADDERS is climbed: the first rung whose
   condition holds says which order goes out next, or which *signal* ends the climb. A signal meets its row
   in SESSION like an event. What is owed next depends on facts only, so a retry, a close that joins and a
   restart are one and the same code.

The run phase names the one order in flight. Words like *unconfirmed* or *released* are read off the facts.
"""

from enum import Enum
from typing import TypeAlias

from inspan_core import handlers, learning
from inspan_core.answers import (
    Collected,
    Disconnected,
    EvidenceMissing,
    ExecLost,
    ExecReleased,
    ExecReturned,
    FilesRemoved,
    Installed,
    InstallFailed,
    NeverLaunched,
    Parsed,
    SandboxGone,
    SandboxReady,
    SandboxStopped,
    SandboxUnavailable,
    SlotGranted,
    Staged,
    StageFailed,
    StepFailed,
    StepTimedOut,
    TerminationConfirmed,
    TerminationRefuted,
)
from inspan_core.events import (
    Abandoned,
    ActivateRequested,
    ClientGone,
    CloseRequested,
    ExpiryReached,
    Restarted,
    RetryDue,
    SeedRequested,
    Signal,
    WindowEnded,
)
from inspan_core.findings import CollectResult
from inspan_core.orders import ORDER_PHASES
from inspan_core.rules import Ignored, Learn, Refused, Row, Rule, Rung, learns
from inspan_core.session import Evidence, Phase, RunPhase, SandboxFact

Key: TypeAlias = type | Signal

# --- SESSION ------------------------------------------------------------------------------------------

_SILENT: dict[Key, Row] = {
    signal: Refused(None, "the run of a session in this phase has no such thing to tell") for signal in Signal
}
"""The rows of a phase for the signals that cannot come in it; a phase names those that can."""

_USUAL: dict[Key, Row] = {
    **_SILENT,
    ClientGone: Rule(handlers.drop_waiter),
    WindowEnded: Refused(None, "no answer is retained, so no window can end"),
    RetryDue: Refused(None, "no release failed, so no retry is due"),
    ExpiryReached: Refused(None, "no lease is counted in this phase"),
    Abandoned: Refused(None, "only a session whose release has failed can be abandoned"),
}
"""The rows that most phases share; each of them is written out again where a phase differs."""

_LEAVING: dict[Key, Row] = {
    ExpiryReached: Ignored("the sandbox is being released already"),
    RetryDue: Ignored("the release is being tried already"),
}

SESSION: dict[Phase, dict[Key, Row]] = {
    Phase.NEW: {
        **_USUAL,
        SeedRequested: Rule(handlers.open_session, to={Phase.SEEDING}),
        ActivateRequested: Refused(409, "session {name} is unknown"),
        CloseRequested: Rule(handlers.fence, to={Phase.FENCED}),
        Restarted: Ignored("there is no record to go on from"),
    },
    Phase.SEEDING: {
        **_USUAL,
        SeedRequested: Rule(handlers.join_seed),
        ActivateRequested: Refused(409, "session {name} is still being set up"),
        CloseRequested: Rule(handlers.close_session, to={Phase.CLOSING}),
        ExpiryReached: Rule(handlers.expire, to={Phase.CLOSING}),
        Restarted: Rule(handlers.restart_setup, to={Phase.UNWINDING}),
        Signal.PUBLISHED: Rule(handlers.publish, to={Phase.READY}),
        Signal.SETUP_FAILED: Rule(handlers.unwind, to={Phase.UNWINDING}),
    },
    Phase.UNWINDING: {
        **_USUAL,
        **_LEAVING,
        SeedRequested: Rule(handlers.join_seed),
        ActivateRequested: Refused(409, "session {name} could not be set up and is being undone"),
        CloseRequested: Rule(handlers.close_session, to={Phase.CLOSING}),
        Restarted: Rule(handlers.restart_setup, to={Phase.UNWINDING}),
        Signal.RELEASED: Rule(handlers.forget_setup, to={Phase.NEW, Phase.SEEDING}),
        Signal.RELEASE_FAILED: Rule(handlers.keep_partial, to={Phase.SETUP_FAILED}),
    },
    Phase.READY: {
        **_USUAL,
        SeedRequested: Rule(handlers.confirm_seed),
        ActivateRequested: Rule(handlers.bind_activation, to={Phase.ACTIVE}),
        CloseRequested: Rule(handlers.close_session, to={Phase.CLOSING}),
        ExpiryReached: Rule(handlers.expire, to={Phase.CLOSING}),
        Restarted: Rule(handlers.restart_idle),
    },
    Phase.ACTIVE: {
        **_USUAL,
        SeedRequested: Rule(handlers.confirm_seed),
        ActivateRequested: Rule(handlers.join_activation),
        CloseRequested: Rule(handlers.close_session, to={Phase.CLOSING}),
        ExpiryReached: Rule(handlers.expire, to={Phase.CLOSING}),
        Restarted: Rule(handlers.restart_run),
        Signal.RUN_ENDED: Rule(handlers.finish_run, to={Phase.FINISHED}),
    },
    Phase.FINISHED: {
        **_USUAL,
        SeedRequested: Rule(handlers.confirm_seed),
        ActivateRequested: Rule(handlers.replay_activation),
        CloseRequested: Rule(handlers.close_session, to={Phase.CLOSING}),
        ExpiryReached: Rule(handlers.expire, to={Phase.CLOSING}),
        Restarted: Rule(handlers.restart_idle),
    },
    Phase.SETUP_FAILED: {
        **_USUAL,
        SeedRequested: Refused(409, "session {name} could not be set up or undone, and is kept for close"),
        ActivateRequested: Refused(409, "session {name} could not be set up, and is kept for close"),
        CloseRequested: Rule(handlers.close_session, to={Phase.CLOSING}),
        RetryDue: Rule(handlers.release_again, to={Phase.CLOSING}),
        Restarted: Rule(handlers.restart_release, to={Phase.CLOSING}),
        Abandoned: Rule(handlers.abandon, to={Phase.CLOSED}),
    },
    Phase.CLOSING: {
        **_USUAL,
        **_LEAVING,
        SeedRequested: Refused(409, "session {name} is being closed"),
        ActivateRequested: Refused(409, "session {name} is being closed"),
        CloseRequested: Rule(handlers.join_close),
        Restarted: Rule(handlers.restart_release, to={Phase.CLOSING}),
        Signal.RELEASED: Rule(handlers.complete_close, to={Phase.CLOSED}),
        Signal.RELEASE_FAILED: Rule(handlers.keep_for_retry, to={Phase.CLOSE_FAILED}),
    },
    Phase.CLOSE_FAILED: {
        **_USUAL,
        SeedRequested: Refused(409, "session {name} could not be closed, and is kept for another close"),
        ActivateRequested: Refused(409, "session {name} could not be closed, and is kept for another close"),
        CloseRequested: Rule(handlers.close_session, to={Phase.CLOSING}),
        RetryDue: Rule(handlers.release_again, to={Phase.CLOSING}),
        Restarted: Rule(handlers.restart_release, to={Phase.CLOSING}),
        Abandoned: Rule(handlers.abandon, to={Phase.CLOSED}),
        Signal.STRAGGLER_ENDED: Rule(handlers.release_again, to={Phase.CLOSING}),
    },
    Phase.CLOSED: {
        **_USUAL,
        SeedRequested: Refused(409, "session {name} is closed"),
        ActivateRequested: Refused(409, "session {name} is closed"),
        CloseRequested: Rule(handlers.replay_close),
        WindowEnded: Rule(handlers.end_retention, to={Phase.NEW}),
        Restarted: Rule(handlers.restart_retained),
    },
    Phase.FENCED: {
        **_USUAL,
        SeedRequested: Refused(409, "session {name} was closed before it was seeded"),
        ActivateRequested: Refused(409, "session {name} was closed before it was seeded"),
        CloseRequested: Rule(handlers.replay_close),
        WindowEnded: Rule(handlers.end_retention, to={Phase.NEW}),
        Restarted: Rule(handlers.restart_retained),
    },
}

# --- LEARN --------------------------------------------------------------------------------------------

_FAILED_STEP = learns(fails=True)
_FAILS: dict[type, Learn] = {StepFailed: _FAILED_STEP, StepTimedOut: _FAILED_STEP}
_RECEIPT: dict[type, Learn] = {
    TerminationConfirmed: learns(learning.confirmed, evidence=Evidence.CONFIRMED),
    TerminationRefuted: learns(learning.refuted, evidence=Evidence.NEGATIVE),
    NeverLaunched: learns(evidence=Evidence.NEVER_LAUNCHED),
    SandboxGone: learns(gone=True),
}
_NO_RECEIPT = learns(learning.receipt_missing, fails=True)
_NO_STOP = learns(learning.stop_unproven, fails=True)
_NO_CONNECTION = learns(learning.connect_broke)
_NO_RUNTIME = learns(learning.install_broke)
_NOT_STAGED = learns(learning.stage_broke)
_EXEC_LOST = learns()
_NOT_PARSED = learns(learning.parse_broke)
_NO_SANDBOX = learns(sandbox=SandboxFact.NONE)

LEARN: dict[RunPhase, dict[type, Learn]] = {
    RunPhase.REST: {},
    RunPhase.CONNECTING: {
        SandboxReady: learns(sandbox=SandboxFact.LIVE),
        SandboxUnavailable: learns(learning.setup_refused, sandbox=SandboxFact.NONE),
        SandboxGone: _NO_CONNECTION,
        StepFailed: _NO_CONNECTION,
        StepTimedOut: _NO_CONNECTION,
    },
    RunPhase.INSTALLING: {
        Installed: learns(installed=True),
        InstallFailed: learns(learning.setup_refused),
        SandboxGone: learns(learning.install_broke, gone=True),
        StepFailed: _NO_RUNTIME,
        StepTimedOut: _NO_RUNTIME,
    },
    RunPhase.QUEUED: {SlotGranted: learns(slot=True), StepFailed: learns(learning.queue_broke)},
    RunPhase.STAGING: {
        Staged: learns(staged=True),
        StageFailed: learns(learning.stage_refused),
        SandboxGone: learns(learning.stage_broke, gone=True),
        StepFailed: _NOT_STAGED,
        StepTimedOut: _NOT_STAGED,
    },
    RunPhase.RUNNING: {
        **_RECEIPT,
        ExecReturned: learns(exec_held=False, exec_returned=True),
        ExecLost: _EXEC_LOST,
        StepFailed: _EXEC_LOST,
        StepTimedOut: _EXEC_LOST,
    },
    RunPhase.AWAITING: {
        **_RECEIPT,
        EvidenceMissing: _NO_RECEIPT,
        StepFailed: _NO_RECEIPT,
        StepTimedOut: _NO_RECEIPT,
    },
    RunPhase.STOPPING: {
        **_RECEIPT,
        EvidenceMissing: _NO_STOP,
        StepFailed: _NO_STOP,
        StepTimedOut: _NO_STOP,
    },
    RunPhase.COLLECTING: {
        Collected: learns(learning.collected),
        SandboxGone: learns(learning.collect_broke, collect=CollectResult.UNAVAILABLE, gone=True),
        StepFailed: learns(learning.collect_broke, collect=CollectResult.FAILED),
        StepTimedOut: learns(learning.collect_broke, collect=CollectResult.TIMEOUT),
    },
    RunPhase.PARSING: {
        Parsed: learns(learning.parsed),
        StepFailed: _NOT_PARSED,
        StepTimedOut: _NOT_PARSED,
    },
    RunPhase.RELEASING_EXEC: {
        **_FAILS,
        ExecReleased: learns(exec_held=False),
        SandboxGone: learns(gone=True),
    },
    RunPhase.CANCELLING: _FAILS,
    RunPhase.REMOVING_FILES: {**_FAILS, FilesRemoved: learns(files=False), SandboxGone: learns(gone=True)},
    RunPhase.DISCONNECTING: {**_FAILS, Disconnected: _NO_SANDBOX, SandboxGone: _NO_SANDBOX},
    RunPhase.STOPPING_SANDBOX: {**_FAILS, SandboxStopped: _NO_SANDBOX, SandboxGone: _NO_SANDBOX},
}

ANSWERS: dict[type, frozenset[type]] = {
    order: frozenset(LEARN[phase]) for order, phase in ORDER_PHASES.items()
}
"""The answers that each order may get; for `CancelPending`, those under its own number."""

# --- LADDERS ------------------------------------------------------------------------------------------


class Goal(Enum):
    """What a ladder leads to."""

    # As for `inspan_core.session.Phase`: identity will do, and Enum's own hash is dear in table look-ups.
    __hash__ = object.__hash__

    SETUP = "set up"
    FINALIZE = "finalize"
    RELEASE_BORROWED = "release, borrowed"
    RELEASE_OWNED = "release, owned"


_UNDECIDED = Rung(
    "launched, and its end unknown",
    lambda d: d.launched and d.evidence is Evidence.NONE,
    RunPhase.STOPPING,
)
_COLLECT = Rung(
    "confirmed and uncollected",
    lambda d: d.evidence is Evidence.CONFIRMED and d.collect is None,
    RunPhase.COLLECTING,
)
_PARSE = Rung(
    "collected and unparsed",
    lambda d: d.outcome is None and d.collect in learning.GRADABLE_COLLECTIONS,
    RunPhase.PARSING,
)
_RELEASE_EXEC = Rung("exec held", lambda d: d.exec_held, RunPhase.RELEASING_EXEC)
_PENDING = Rung("an order is to be cancelled", lambda d: d.pending is not None, RunPhase.CANCELLING)
_NOTHING = Rung("no sandbox", lambda d: d.sandbox is SandboxFact.NONE, Signal.RELEASED)


LADDERS: dict[Goal, tuple[Rung, ...]] = {
    Goal.SETUP: (
        Rung("the set-up failed", lambda d: d.setup_error is not None, Signal.SETUP_FAILED),
        Rung("no sandbox", lambda d: d.sandbox is SandboxFact.NONE, RunPhase.CONNECTING),
        Rung("not installed", lambda d: not d.installed, RunPhase.INSTALLING),
        Rung("otherwise", lambda d: True, Signal.PUBLISHED),
    ),
    Goal.FINALIZE: (
        Rung("the step failed", lambda d: d.failed is not None, Signal.RUN_ENDED),
        Rung("the sandbox is gone", lambda d: d.sandbox is SandboxFact.GONE, Signal.RUN_ENDED),
        Rung(
            "failed before the launch",
            lambda d: d.execution_error is not None and not d.launched,
            Signal.RUN_ENDED,
        ),
        Rung("not staged, no slot", lambda d: not d.staged and not d.slot, RunPhase.QUEUED),
        Rung("not staged", lambda d: not d.staged, RunPhase.STAGING),
        Rung("not launched", lambda d: not d.launched, RunPhase.RUNNING),
        Rung("its end unknown", _UNDECIDED.when, RunPhase.AWAITING),
        _COLLECT,
        _PARSE,
        _RELEASE_EXEC,
        Rung("otherwise", lambda d: True, Signal.RUN_ENDED),
    ),
    Goal.RELEASE_BORROWED: (
        Rung("the step failed", lambda d: d.failed is not None, Signal.RELEASE_FAILED),
        _PENDING,
        _NOTHING,
        Rung("the sandbox is gone", lambda d: d.sandbox is SandboxFact.GONE, RunPhase.DISCONNECTING),
        _UNDECIDED,
        _COLLECT,
        _PARSE,
        _RELEASE_EXEC,
        Rung("files left", lambda d: d.files, RunPhase.REMOVING_FILES),
        Rung("otherwise", lambda d: True, RunPhase.DISCONNECTING),
    ),
    Goal.RELEASE_OWNED: (
        Rung(
            "the stop failed, or the step while a create is in flight",
            lambda d: (
                d.failed is RunPhase.STOPPING_SANDBOX
                or (d.failed is not None and d.pending is not None and d.pending.phase is RunPhase.CONNECTING)
            ),
            Signal.RELEASE_FAILED,
        ),
        Rung("any other step failed", lambda d: d.failed is not None, RunPhase.STOPPING_SANDBOX),
        _NOTHING,
        _PENDING,
        Rung(
            "the sandbox is gone, or may exist",
            lambda d: d.sandbox is not SandboxFact.LIVE,
            RunPhase.STOPPING_SANDBOX,
        ),
        _UNDECIDED,
        _COLLECT,
        _PARSE,
        _RELEASE_EXEC,
        Rung("otherwise", lambda d: True, RunPhase.STOPPING_SANDBOX),
    ),
}
