"""What the Agent Server's service is told, and what it tells."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, frozen

from inspan_core.harness import Artifacts
from inspan_core.receipts import CleanupReceipt, ProcessesReport
from inspan_core.session import Settings
from inspan_core.wire import ToolAccess
from inspan_runtime.harness_work import OwnedSandbox
from inspan_runtime.perform import Supervision


@frozen(kw_only=True)
class ServiceSettings:
    """What the service needs to know of its configuration.

    Attributes:
        model_base_url: The Model Server's URL without rollout prefix and ``/v1``, reachable from sandboxes.
        model_name: The model that harnesses ask for.
        model_key: Gives the episode's own key for the Model Server from its capture key.
        run_timeout_s: Most seconds that a run may take.
        concurrency: How many runs may be under way at once.
        session: The machine's budgets.
        supervision: The supervisor's budgets.
        session_dir_root: Absolute folder inside sandboxes for session folders, or None: the sandbox's own
            scratch folder where its descriptor names one, else ``/tmp/inspan``. Its name shows in command
            lines inside, so it names neither the harness nor an interpreter.
        owned: The sandbox of sessions that bring none, or None: such seeds are refused.
        options: The harness's options.
        tool_accesses: The configuration's tool grants.
        retains_artifacts: Whether artifacts stay in memory after close, until its window ends.
        fence_limit: How many fences of ids never seeded are kept.
        new_folder: Names a session's folder; a name is never given twice.
        host_dir: Absolute folder for calls without a session, which run on this host; None: they are refused.
        server_id: What this server and those after it are called, on the labels of their own sandboxes; None:
            sandboxes are not labelled.
        recovery_timeout_s: How long new seeds wait for what a dead server left, in seconds.
    """

    model_base_url: str
    model_name: str
    model_key: Callable[[str], str] = field(default=lambda _capture_key: "inspan", repr=False)
    run_timeout_s: float = 21600.0
    concurrency: int = 64
    session: Settings = field(factory=Settings)
    supervision: Supervision = field(factory=Supervision)
    session_dir_root: str | None = None
    owned: OwnedSandbox | None = None
    options: Mapping[str, Any] = field(factory=dict)
    tool_accesses: tuple[ToolAccess, ...] = ()
    retains_artifacts: bool = False
    fence_limit: int = 10_000
    new_folder: Callable[[], str] = lambda: uuid.uuid4().hex
    host_dir: str | None = None
    server_id: str | None = None
    recovery_timeout_s: float = 120.0


@frozen(kw_only=True)
class Answer:
    """An HTTP status and its JSON body."""

    status: int
    body: Mapping[str, Any]


@frozen(kw_only=True)
class SessionEvidence:
    """What is kept of a session's run, for operators and demonstrations.

    Attributes:
        receipt: The termination receipt, or None.
        processes: What the supervisor reported of processes, or None.
        artifacts: What was collected.
        gradable: Whether activation was answered 200 and the close succeeded.
    """

    receipt: CleanupReceipt | None
    processes: ProcessesReport | None
    artifacts: Artifacts
    gradable: bool
