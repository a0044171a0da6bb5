"""Every fault on every harness: the real program, a real sandbox, and what three witnesses tell of it."""

import pytest

from .compare import check_seen
from .expected import expected
from .faults import FAULTS, HARNESSES, run_fault

pytestmark = [pytest.mark.sandbox, pytest.mark.registry, pytest.mark.timeout(400)]

QUICK = {
    ("tool success", "hermes"),
    ("tool failure, recovery", "pi"),
    ("two tools, one state", "codex"),
    ("429 twice", "pi"),
    ("500 once", "codex"),
    ("context overflow", "pi"),
    ("401", "codex"),
    ("usage omitted", "codex"),
    ("dropped stream", "pi"),
    ("deadline during a tool", "codex"),
    ("close during a tool", "codex"),
    ("harness killed", "pi"),
    ("background service", "codex"),
    ("forced removal", "codex"),
    ("malformed arguments", "pi"),
    ("huge and broken output", "codex"),
    ("hard prompt", "pi"),
}
"""One of each class, for every run; the rest is tried by the full one."""


def cells():
    for fault in FAULTS:
        for harness in HARNESSES:
            marks = [] if (fault, harness) in QUICK else [pytest.mark.full]
            yield pytest.param(fault, harness, marks=marks, id=f"{harness}-{fault.replace(' ', '-')}")


@pytest.mark.parametrize(("fault", "harness"), [*cells()])
def test_fault(portal, world, fault, harness):
    fault = FAULTS[fault]
    seen = portal.call(run_fault, world, harness, fault)
    check_seen(seen, fault.prompt)
    fault.check(seen, harness)
    wanted = expected(fault.name, harness)
    others = frozenset(gap for gap in seen.gaps if not gap.startswith("processes_"))
    assert (seen.status, seen.how, len(seen.calls), others) == (
        wanted.status, wanted.how, wanted.calls, wanted.gaps,
    )  # fmt: skip
