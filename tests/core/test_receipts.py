"""Receipts and reports: strict where they are evidence, tolerant where they are only told."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inspan_core.errors import EvidenceMissing, HarnessTerminationError, UsageError
from inspan_core.receipts import (
    PROCESSES_LIMIT,
    PROCESSES_LIMIT_BYTES,
    RECEIPT_LIMIT_BYTES,
    CleanupReceipt,
    ProcessEntry,
    ProcessesReport,
    parse_cleanup_receipt,
    parse_processes,
)

GOOD = {"cleanup_confirmed": True, "return_code": 0, "error": None, "timed_out": False}


@pytest.mark.parametrize("confirmed", [True, False])
@pytest.mark.parametrize("return_code", [None, 0, 3, -9, 137])
@pytest.mark.parametrize("error", [None, "", "it still lives: \u00e4"])
@pytest.mark.parametrize("timed_out", [True, False])
def test_a_well_formed_receipt_is_read_as_it_is(confirmed, return_code, error, timed_out):
    value = {
        "cleanup_confirmed": confirmed,
        "return_code": return_code,
        "error": error,
        "timed_out": timed_out,
    }
    assert parse_cleanup_receipt(json.dumps(value).encode()) == CleanupReceipt(**value)


MALFORMED = [
    *({key: value for key, value in GOOD.items() if key != left_out} for left_out in GOOD),
    {**GOOD, "more": 1},
    *({**GOOD, "cleanup_confirmed": value} for value in (1, 0, "true", None, [])),
    *({**GOOD, "return_code": value} for value in (True, "0", 0.0, [])),
    *({**GOOD, "error": value} for value in (False, 0, ["x"], {})),
    *({**GOOD, "timed_out": value} for value in (0, None, "false")),
    [],
    None,
    True,
    "cleanup_confirmed",
]


@pytest.mark.parametrize("value", MALFORMED, ids=repr)
def test_a_receipt_that_does_not_fit_is_no_evidence(value):
    with pytest.raises(EvidenceMissing, match="malformed"):
        parse_cleanup_receipt(json.dumps(value).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        json.dumps(GOOD).encode()[:-1],
        json.dumps(GOOD).encode() + b"{}",
        json.dumps(GOOD).encode().ljust(RECEIPT_LIMIT_BYTES + 1),
        b"[" * 10_000,
    ],
    ids=["empty", "cut", "not UTF-8", "cut at the end", "two values", "too long", "deep"],
)
def test_bytes_that_are_no_receipt_are_no_evidence(data):
    with pytest.raises(EvidenceMissing, match="malformed"):
        parse_cleanup_receipt(data)


def test_unknown_evidence_is_the_infrastructures_failure_and_a_negative_receipt_the_harnesss():
    with pytest.raises(EvidenceMissing) as caught:
        parse_cleanup_receipt(b"")
    assert caught.value.failure_kind == "infrastructure"
    assert HarnessTerminationError.failure_kind == "harness"
    assert UsageError.failure_kind == "usage"


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_a_receipt_or_no_evidence(data):
    try:
        parse_cleanup_receipt(data)
    except EvidenceMissing:
        pass


ENTRY = {
    "pid": 7,
    "name": "sleep",
    "reason": "adopted",
    "parent": 1,
    "group": 7,
    "session": 7,
    "start_ticks": 99,
    "ports": [80, 8000],
}


def test_a_report_is_read_and_told_again():
    value = {"killed": [ENTRY], "preserved": [], "unfinished": [{"pid": 8}]}
    report = parse_processes(json.dumps(value).encode())
    entry = ProcessEntry(**{**ENTRY, "ports": (80, 8000)})
    assert report == ProcessesReport(killed=(entry,), unfinished=(ProcessEntry(pid=8),))
    assert report.to_json() == value
    cut = {**value, "dropped": {"killed": 3}}
    assert parse_processes(json.dumps(cut).encode()).to_json() == cut


@pytest.mark.parametrize(
    "ports", [None, "80", 80, {}, [0], [65536], [80, "x"], [True], [80.0], [-1], list(range(1, 66))]
)
def test_ports_that_do_not_fit_are_unknown_and_not_none_at_all(ports):
    report = parse_processes(json.dumps({"killed": [{**ENTRY, "ports": ports}]}).encode())
    assert report.killed[0].ports is None


def test_no_port_is_known_to_be_none():
    report = parse_processes(json.dumps({"killed": [{**ENTRY, "ports": []}]}).encode())
    assert report.killed[0].ports == ()


@pytest.mark.parametrize(
    ("reason", "believed"),
    [
        ("group", True),
        ("below 17", True),
        ("adopted from a tool that was still running", True),
        ("below 0", False),
        ("below 17\n", False),
        ("sk-secret", False),
        (7, False),
    ],
)
def test_a_reason_is_one_of_those_that_the_supervisor_gives(reason, believed):
    report = parse_processes(json.dumps({"killed": [{**ENTRY, "reason": reason}]}).encode())
    assert report.killed[0].reason == (reason if believed else None)


def test_a_process_is_told_in_printable_words():
    entry = ProcessEntry(pid=7, name="a\n\x1b[31m", reason="group", ports=(80, 8000))
    assert entry.describe() == "a??[31m (pid 7, ports 80 8000; group)"
    assert ProcessEntry(pid=8).describe() == "unnamed (pid 8; no reason given)"


@pytest.mark.parametrize("dropped", [None, 7, {"killed": "3"}, {"killed": -1}, {"killed": True}, {"x": 3}])
def test_counts_that_do_not_fit_are_left_out(dropped):
    assert parse_processes(json.dumps({"killed": [], "dropped": dropped}).encode()).dropped == {}


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"7", b" " * (PROCESSES_LIMIT_BYTES + 1)])
def test_what_is_no_report_is_none(data):
    assert parse_processes(data) is None


def test_of_a_report_only_what_fits_is_taken():
    wrong = [None, 7, [], {}, {"pid": "7"}, {"pid": True}, {"pid": 7.0}]
    value = {"killed": [*wrong, {**ENTRY, "name": 5, "group": "x", "more": "y"}], "preserved": {"pid": 1}}
    report = parse_processes(json.dumps(value).encode())
    [entry] = report.killed
    assert (entry.pid, entry.name, entry.group, entry.session) == (7, None, None, 7)
    assert report.preserved == report.unfinished == ()


def test_a_report_is_bounded_in_entries_and_texts():
    value = {
        "killed": [{"pid": n, "name": "x" * 5000} for n in range(190)] + [{"pid": n} for n in range(3000)]
    }
    report = parse_processes(json.dumps(value).encode())
    assert len(report.killed) == PROCESSES_LIMIT
    assert report.dropped == {"killed": 3190 - PROCESSES_LIMIT}
    assert len(report.killed[0].name) == 15
