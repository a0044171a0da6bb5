"""What a restarted server knows of a session beside its events."""

from __future__ import annotations

import json
from collections.abc import Mapping

from inspan_core.receipts import parse_processes
from inspan_runtime.harness_work import HarnessWork
from inspan_runtime.packing import unpack_artifacts, unpack_grants, unpack_parsed, unpack_receipt
from inspan_runtime.room import Room


def restore_work(work: HarnessWork, contents: Mapping[str, bytes], secrets: Mapping[str, bytes]) -> None:
    """Give the harness's side back what it kept."""
    if "grants" in contents:
        usable, gaps = unpack_grants(contents["grants"])
        work.tool_accesses = tuple(grant for grant in work.tool_accesses if grant.name in usable)
        work.gaps.extend(gaps)
    if "cookies" in secrets:
        work.resources_cookies = json.loads(secrets["cookies"])
    if "sandbox" in contents:
        work.sandbox_id, work.descriptor, _ = json.loads(contents["sandbox"])
    if "runtime" in contents:
        work.runtime = json.loads(contents["runtime"])
    if "artifacts" in contents:
        work.artifacts = unpack_artifacts(contents["artifacts"])
    if "parsed" in contents:
        work.parsed = unpack_parsed(contents["parsed"])


def restore_room(room: Room, contents: Mapping[str, bytes]) -> None:
    """Give the world's side back what it kept; its connection is made when it is needed."""
    if "sandbox" in contents:
        room.session_dir = json.loads(contents["sandbox"])[2]
    if "receipt" in contents:
        room.receipt = unpack_receipt(contents["receipt"])
    if "processes" in contents:
        room.processes = parse_processes(contents["processes"])
