"""What the machine's replies look like on the wire: it decides status and kind, contents are kept here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, evolve

from inspan_core.codec import encode, encode_observations
from inspan_core.effects import ActivationBody, CloseBody, ErrorBody, Reply, SeedBody
from inspan_core.errors import WireError
from inspan_core.observations import (
    AgentObservationBundle,
    ObservationGap,
    SandboxObservation,
    SandboxOutcome,
)
from inspan_core.receipts import KINDS as PROCESS_KINDS
from inspan_core.receipts import ProcessEntry, ProcessesReport
from inspan_core.session import Evidence
from inspan_core.wire import CloseResponse, EpisodeId, SeedRequest
from inspan_runtime.driver import SessionDriver
from inspan_runtime.harness_work import HarnessWork
from inspan_runtime.room import ExecHandle, Room
from inspan_runtime.service_settings import Answer

PROCESSES_TOLD = 32
"""How many processes of a kind a gap tells one by one."""


@define(eq=False)
class Record:
    """One session of the service.

    Attributes:
        seed: The seed that opened it; None for an id that was only closed.
        driver: Holds the machine's state.
        work: The harness's side; None with `seed`.
        room: The world's side.
        episode_id: Of the seed, or of the first close of an id that was never seeded.
        closed_body: The body of the successful close, kept for its replays.
    """

    seed: SeedRequest | None
    driver: SessionDriver
    work: HarnessWork | None
    room: Room
    episode_id: EpisodeId
    closed_body: Mapping[str, Any] | None = None


def error_answer(status: int, detail: Any) -> Answer:
    """``{"detail": ...}`` with its status."""
    return Answer(status=status, body={"detail": detail})


def to_answer(session_id: str, record: Record, reply: Reply) -> Answer:
    """Join a reply with the retained contents that it speaks of."""
    match reply.body:
        case SeedBody():
            return Answer(status=reply.status, body={"agent_session_id": session_id})
        case ActivationBody():
            parsed = None if record.work is None else record.work.parsed
            if parsed is None or parsed.response is None:
                return error_answer(503, "the harness's parser returned no response")
            return Answer(status=reply.status, body=parsed.response)
        case CloseBody():
            if record.closed_body is None:
                record.closed_body = closed_body(session_id, record, reply.body)
            return Answer(status=reply.status, body=record.closed_body)
        case ErrorBody(detail=detail):
            return error_answer(reply.status, _detail(record, detail))


def _detail(record: Record, detail: str) -> Any:
    """The parser's own object instead of its text; what a launch that never was printed, beside its error."""
    parsed = None if record.work is None else record.work.parsed
    if parsed is not None and parsed.detail is not None and detail == str(parsed.detail):
        return parsed.detail
    run, handle = record.driver.session.run, record.room.exec
    if run.evidence is Evidence.NEVER_LAUNCHED and handle is not None and handle.complaint:
        return f"{detail}: {handle.complaint}"
    return detail


def closed_body(session_id: str, record: Record, body: CloseBody) -> Mapping[str, Any]:
    """The body of a successful close: the observations, with the gaps that the machine found."""
    bundle: AgentObservationBundle | None = None
    work = record.work
    if body.seeded and work is not None:
        if work.parsed is not None:
            bundle = work.parsed.observations
        else:
            bundle = AgentObservationBundle(source=work.harness.spec.name)
        gaps = [ObservationGap(code=gap.code.value, detail=gap.detail) for gap in body.gaps]
        processes = (*process_gaps(record.room.processes), *memory_gaps(record.room.exec))
        bundle = evolve(bundle, records=(*bundle.records, *sandbox_records(record)))
        bundle = _checked(evolve(bundle, gaps=(*bundle.gaps, *work.gaps, *gaps, *processes)))
    cookies = None if work is None else work.resources_cookies
    response = CloseResponse(
        agent_session_id=session_id, agent_observations=bundle, resources_cookies=cookies
    )
    encoded: Mapping[str, Any] = encode(response)
    return encoded


def sandbox_records(record: Record) -> tuple[SandboxObservation, ...]:
    """What the run's sandbox has used, where its provider tells; a parser's own record of it wins."""
    work, room = record.work, record.room
    if work is None or work.usage is None:
        return ()
    told = () if work.parsed is None else work.parsed.observations.records
    if any(isinstance(one, SandboxObservation) for one in told):
        return ()
    outcome: SandboxOutcome = "unknown"
    if memory_gaps(room.exec):
        outcome = "oom"
    elif room.receipt is not None:
        ended: SandboxOutcome = "cancelled" if work.interrupted else "completed"
        outcome = "timeout" if room.receipt.timed_out else ended
    return (
        SandboxObservation(
            role="agent",
            provider=None if work.descriptor is None else work.descriptor.get("provider"),
            sandbox_id=work.sandbox_id,
            outcome=outcome,
            exit_code=None if room.receipt is None else room.receipt.return_code,
            cpu_time_s=work.usage.cpu_time_s,
            peak_memory_mib=work.usage.peak_memory_mib,
            resource_usage_source=work.usage.source,
        ),
    )


def process_gaps(report: ProcessesReport | None) -> tuple[ObservationGap, ...]:
    """What the supervisor reported of processes beside the harness, one gap for each kind that there is.

    The reader's records have no place for processes, and refuse what they do not know. Their codes are
    ``processes_killed``, ``processes_preserved`` and ``processes_unfinished``.
    """
    if report is None:
        return ()
    gaps: list[ObservationGap] = []
    for kind in PROCESS_KINDS:
        entries: Sequence[ProcessEntry] = getattr(report, kind)
        count = len(entries) + report.dropped.get(kind, 0)
        if count:
            told = [entry.describe() for entry in entries[:PROCESSES_TOLD]]
            more = [f"and {count - len(told)} more"] if count > len(told) else []
            gaps.append(
                ObservationGap(code=f"processes_{kind}", detail=f"{count} {kind}: {', '.join(told + more)}")
            )
    return tuple(gaps)


def memory_gaps(handle: ExecHandle | None) -> tuple[ObservationGap, ...]:
    """Whether the sandbox ran out of memory while the harness ran, where the provider can tell."""
    if handle is None or handle.result is None or not handle.result.out_of_memory:
        return ()
    detail = "the sandbox's memory limit killed something while the harness ran"
    return (ObservationGap(code="out_of_memory", detail=detail),)


def _checked(bundle: AgentObservationBundle) -> AgentObservationBundle:
    """The bundle if a reader accepts it; else its gaps and one that says what was wrong with its records."""
    try:
        encode_observations(bundle)
    except WireError as error:
        gap = ObservationGap(code="observation_invalid", detail=f"the parser's records do not fit: {error}")
        return evolve(bundle, records=(), gaps=(*bundle.gaps, gap))
    return bundle
