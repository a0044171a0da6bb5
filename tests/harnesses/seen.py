"""What one session was seen to do, by three witnesses that do not know of each other."""

from __future__ import annotations

from attrs import frozen

from inspan_core.receipts import CleanupReceipt, ProcessesReport


@frozen(kw_only=True)
class Seen:
    """One session from outside.

    Attributes:
        status, answer: The activation's answer.
        close_status, closed: The close's.
        receipt, processes: The supervisor's.
        gradable: Whether the Agent Server takes the run for one that may be graded.
        model: The one that the Agent Server was told to ask for.
        calls: What the gateway recorded, in the order in which the calls began.
        strays: How many calls, of whoever, came without a rollout or with a wrong key.
        looks: What the sandbox showed of itself at each model call, while the call was open.
        before, after: The same before the activation and after the close.
        notes: What the fault's own work has found.
    """

    status: int
    answer: dict
    close_status: int
    closed: dict
    receipt: CleanupReceipt | None
    processes: ProcessesReport | None
    gradable: bool
    sandbox_id: str
    model: str
    calls: tuple
    strays: int
    looks: tuple
    before: dict
    after: dict
    notes: dict

    @property
    def records(self):
        return self.closed["agent_observations"]["records"]

    def records_of(self, kind):
        return [record for record in self.records if record["kind"] == kind]

    @property
    def gaps(self):
        return {gap["code"] for gap in self.closed["agent_observations"]["gaps"]}

    @property
    def answered(self):
        """The calls whose answer the harness got whole."""
        return [call for call in self.calls if call.outcome == "answered"]

    @property
    def how(self):
        """``completed``, or why not, by the harness's own record."""
        (invocation,) = self.records_of("agent_invocation")
        return invocation["error_type"] or invocation["status"]
