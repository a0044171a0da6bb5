"""Contents of a session as bytes and back, for the journal. What is read back was written by us."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import asdict

from inspan_core.codec import decode, encode
from inspan_core.findings import Outcome
from inspan_core.harness import ArtifactProblem, Artifacts, ParsedActivation
from inspan_core.observations import AgentObservationBundle, ObservationGap
from inspan_core.receipts import CleanupReceipt
from inspan_core.wire import SeedRequest

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def pack_artifacts(artifacts: Artifacts) -> bytes:
    """A line of JSON that names the files and their sizes, then their bytes."""
    head = {
        "files": [[name, len(data)] for name, data in artifacts.files.items()],
        "problems": [asdict(problem) for problem in artifacts.problems],
    }
    return json.dumps(head).encode() + b"\n" + b"".join(artifacts.files.values())


def unpack_artifacts(data: bytes) -> Artifacts:
    """Read what `pack_artifacts` wrote."""
    line, _, rest = data.partition(b"\n")
    head = json.loads(line)
    files, offset = {}, 0
    for name, size in head["files"]:
        files[name] = rest[offset : offset + size]
        offset += size
    problems = tuple(ArtifactProblem(**problem) for problem in head["problems"])
    return Artifacts(files=files, problems=problems)


def pack_parsed(parsed: ParsedActivation) -> bytes:
    """A JSON object; the response as the client gets it."""
    return to_bytes(
        {
            "outcome": parsed.outcome.value,
            "response": parsed.response,
            "observations": encode(parsed.observations),
            "detail": parsed.detail,
        }
    )


def unpack_parsed(data: bytes) -> ParsedActivation:
    """Read what `pack_parsed` wrote."""
    value = json.loads(data)
    return ParsedActivation(
        outcome=Outcome(value["outcome"]),
        response=value["response"],
        observations=decode(AgentObservationBundle, value["observations"]),
        detail=value["detail"],
    )


def pack_grants(usable: Sequence[str], gaps: Iterable[ObservationGap]) -> bytes:
    """The names of the grants that can be used, and the gaps that the others left."""
    return to_bytes({"usable": list(usable), "gaps": [[gap.code, gap.detail] for gap in gaps]})


def unpack_grants(data: bytes) -> tuple[list[str], list[ObservationGap]]:
    """Read what `pack_grants` wrote."""
    value = json.loads(data)
    return value["usable"], [ObservationGap(code=code, detail=detail) for code, detail in value["gaps"]]


def holds_secrets(seed: SeedRequest) -> bool:
    """Whether it has grants, whose headers and cookies are secrets, or a way into somebody's sandbox."""
    return bool(seed.tool_accesses) or seed.sandbox_access is not None


def pack_seed(seed: SeedRequest) -> bytes:
    """The whole seed: keep it among the secrets when it holds some."""
    return to_bytes(encode(seed))


def unpack_seed(data: bytes) -> SeedRequest:
    """Read what `pack_seed` wrote."""
    return decode(SeedRequest, json.loads(data))


def unpack_receipt(data: bytes) -> CleanupReceipt:
    """Read a receipt that was kept."""
    return CleanupReceipt(**json.loads(data))


def to_bytes(value: Any) -> bytes:
    """Compact JSON; lone surrogates stay escaped."""
    return _ENCODE(value).encode()
