"""Every error that inspan raises, in one tree.

    InspanError
    +-- UsageError                  the caller's fault; a retry cannot fix it
    |   +-- NotAllowed              an event that the session's phase refuses; nothing changed
    |   +-- ConfigError             a configuration that does not fit
    |   +-- PluginError             a plugin that is broken, missing or claims a taken name
    |   +-- RequestRefused          a request that the harness or its configuration cannot serve (422)
    +-- TableError                  a defect of the machine's own tables: a rule broke its own promise
    +-- WireError                   bytes or JSON that do not fit the contract; carries a path
    +-- HarnessError                the harness's fault
    |   +-- HarnessTerminationError a final negative receipt: the harness was not proven stopped
    |   +-- InstallError            the runtime could not be installed or fails its health check
    |   +-- UnsupportedTarget       no runtime fits this sandbox (422)
    |   +-- ArtifactError           an artifact that cannot be read or parsed
    +-- EvidenceMissing             no receipt, or a malformed one: unknown, a later close may still learn it
    +-- SandboxError                the sandbox's or its provider's fault
    |   +-- SandboxCreateError      the provider could not create it
    |   |   +-- ImageMissing        the provider does not have the image
    |   +-- SandboxConnectError     there is a descriptor, but no sandbox answers to it
    |   +-- SandboxGone             the provider says that the sandbox is no more
    |   +-- SandboxTransportError   the connection broke; what the command did is unknown
    |   +-- ExecTimeout             the command's deadline passed; the provider killed it
    |   +-- TooLarge                a file or an output beyond the caller's bound
    |   +-- UnsafePath              a path that is not a plain file, or leads through a link
    |   +-- MountConflict           a mount that the provider cannot make
    |   +-- ProviderUnavailable     the host lacks what the provider needs; says how to get it
    |   +-- ReachUnavailable        a URL of the host cannot be reached from inside; says why (422)
    +-- AgentSessionSetupError      a seed that failed and could not be cleaned up

How a run ends is data (`Outcome`), never an exception.
"""

from __future__ import annotations

from typing import Any, ClassVar


class InspanError(Exception):
    """The root of all errors of inspan.

    Attributes:
        failure_kind: Whose failure it is: ``usage`` (the caller's), ``harness``, or ``infrastructure``, which
            says nothing about the harness and never counts as its score.
    """

    failure_kind: ClassVar[str] = "infrastructure"


class UsageError(InspanError):
    """The caller asked for something that can never work."""

    failure_kind = "usage"


class NotAllowed(UsageError):
    """An event that cannot happen in the session's phase. The session is unchanged.

    Attributes:
        session: The session's name.
        phase: The session phase's name, for example ``"CLOSED"``.
        event: The event type's name, for example ``"Staged"``.
        reason: One sentence.
    """

    def __init__(self, *, session: str, phase: str, event: str, reason: str) -> None:
        super().__init__(f"session {session}: {event} is not allowed in phase {phase}: {reason}")
        self.session = session
        self.phase = phase
        self.event = event
        self.reason = reason


class TableError(InspanError):
    """A defect of the machine's tables: a handler or ladder led where its row does not allow it to go."""


class ConfigError(UsageError):
    """A configuration that does not fit. The message names the key, the value and what was expected."""


class PluginError(UsageError):
    """A plugin that cannot be used. The message names its distribution."""


class RequestRefused(UsageError):
    """A request that a retry cannot fix (HTTP 422).

    Attributes:
        field: The request field or option at fault, or None.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class WireError(InspanError):
    """Input that does not fit the contract.

    Attributes:
        problems: One entry a fault: ``{"type", "loc": ["body", ...], "msg", "input"}``.
    """

    def __init__(self, problems: list[dict[str, Any]]) -> None:
        first = problems[0]
        where = ".".join(str(part) for part in first["loc"])
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{where}: {first['msg']}{more}")
        self.problems = problems


class HarnessError(InspanError):
    """The harness did not do what it was asked to."""

    failure_kind = "harness"


class HarnessTerminationError(HarnessError):
    """The supervisor wrote a well-formed negative receipt. It is final: nothing may be graded.

    Attributes:
        receipt: The `CleanupReceipt`, or None where only its text is known.
    """

    def __init__(self, message: str, *, receipt: Any = None) -> None:
        super().__init__(message)
        self.receipt = receipt


class InstallError(HarnessError):
    """The harness runtime could not be installed, or does not run.

    Attributes:
        command: The failed command, without secrets, or None.
        exit_code: Its exit code, or None when it did not exit.
        output: The tail of its output, at most a few KiB.
    """

    def __init__(
        self, message: str, *, command: str | None = None, exit_code: int | None = None, output: str = ""
    ) -> None:
        detail = "" if command is None else f" (command: {command}; exit code: {exit_code}) {output}".rstrip()
        super().__init__(message + detail)
        self.command = command
        self.exit_code = exit_code
        self.output = output


class UnsupportedTarget(HarnessError):
    """No runtime fits the sandbox. The message names what was found and what is supported."""


class ArtifactError(HarnessError):
    """An artifact is missing, unreadable or malformed."""


class EvidenceMissing(InspanError):
    """Whether the harness stopped is unknown; the state is kept and close may be retried."""


class SandboxError(InspanError):
    """A sandbox or its provider failed."""


class SandboxCreateError(SandboxError):
    """The provider could not create the sandbox."""


class ImageMissing(SandboxCreateError):
    """The provider does not have the image that was asked for. The message says how to get it."""


class SandboxConnectError(SandboxError):
    """No sandbox could be reached by this descriptor."""


class SandboxGone(SandboxError):
    """The provider confirms that the sandbox no longer exists."""


class SandboxTransportError(SandboxError):
    """The connection to the sandbox broke; the effect of the operation is unknown."""


class ExecTimeout(SandboxError):
    """A command ran past its deadline and was killed inside the sandbox."""


class TooLarge(SandboxError):
    """A file or output is larger than the caller's bound."""


class UnsafePath(SandboxError):
    """A path is not a regular file or leads through a symbolic link."""


class MountConflict(SandboxError):
    """A mount's target is taken, lies inside workdir, or the provider has no mounts."""


class ProviderUnavailable(SandboxError):
    """The host lacks what the provider needs. The message says what, and how to get it."""


class ReachUnavailable(SandboxError):
    """The host is not reached from inside, and the provider cannot open a way. The message says why."""


class AgentSessionSetupError(InspanError):
    """A seed failed and its clean-up could not finish: the partial state is kept for close only.

    Attributes:
        state: The partial `AgentSessionState`.
        error: What made the set-up fail.
    """

    def __init__(self, state: Any, *, error: BaseException) -> None:
        super().__init__(f"session set-up failed and could not be cleaned up: {error}")
        self.state = state
        self.error = error
