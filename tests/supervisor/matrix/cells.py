"""One cell: set up, brought to its end, looked at, and compared with the rules."""

import anyio
from attrs import evolve, frozen

from inspan_core.receipts import CleanupReceipt

from .bench import Budgets, SetupFailed, Violation, alone
from .rules import BEHAVIOURS, KINDS, expected

LINGER_GRACE_S = 0.8  # Room for the handler of the one that forks on SIGTERM; all of it is waited for.
FIRST_DEADLINE_S = 0.6
LAST_DEADLINE_S = 20.0


class TooEarly(Exception):
    """The deadline passed before the children were in place."""


@frozen(kw_only=True)
class Seen:
    """What a cell left: the receipt, the launch's exit code, the report, and who lived before and after."""

    receipt: CleanupReceipt
    exit_code: int
    report: dict
    known: dict
    census: dict


async def try_cell(bench, cell, *, source=None, writes=False, budgets=None):
    """Run the cell and compare. A deadline that came too early is moved, and the cell begun anew.

    Raises:
        Violation: A rule was broken.
        SetupFailed: The cell did not come to its ending.
    """
    budgets = budgets or Budgets()
    if BEHAVIOURS[cell.behaviour].lingers:
        budgets = evolve(budgets, grace_s=LINGER_GRACE_S)
    if cell.ending.name == "deadline":
        budgets = evolve(budgets, run_s=FIRST_DEADLINE_S)
    while True:
        try:
            seen = await run_cell(await bench.session(source), cell, writes, budgets)
        except TooEarly as early:
            if budgets.run_s >= LAST_DEADLINE_S:
                raise SetupFailed(f"{early} after {budgets.run_s} s") from early
            budgets = evolve(budgets, run_s=2 * budgets.run_s)
            continue
        compare(cell, seen)
        return seen


async def run_cell(session, cell, writes, budgets):
    behaviour = BEHAVIOURS[cell.behaviour]
    await session.stage(harness_argv(session.bench, cell, writes), budgets, cell.drain)
    async with session.launched() as launch:
        setup = {
            "processes": [
                {"name": one.name, "place": one.place, "above": one.above, "writes": writes and one.writes}
                for one in KINDS[cell.kind]
            ],
            "is_stopped": behaviour.is_stopped,
        }
        ready = await session.observe("ready", **setup)
        if "early" in ready:
            if cell.ending.name == "deadline":
                raise TooEarly(ready["missing"])
            raise Violation(f"a receipt before anything ended the run; missing was {ready['missing']}")
        known = ready["known"]
        receipt = await bring_to_end(session, cell, launch, known, budgets)
        census = await session.observe("census", known=known, writes=writes)
        return Seen(
            receipt=receipt,
            exit_code=await launch.exit_code(),
            report=await session.report(),
            known=known,
            census=census,
        )


def harness_argv(bench, cell, writes):
    code = BEHAVIOURS[cell.behaviour].own_code
    return [
        bench.python, "-I", "-S", f"{bench.root}/fake_harness.py", cell.kind, cell.behaviour,
        str(0 if code is None else code), "writes" if writes else "waits",
    ]  # fmt: skip


async def bring_to_end(session, cell, launch, known, budgets):
    is_killed = BEHAVIOURS[cell.behaviour].own_code == -9
    victim = known["harness"][0] if is_killed else None
    if cell.ending.name in ("natural", "race"):
        stop = cell.ending.name == "race"
        await session.observe("bring_end", exit=True, kill=victim, stop=stop, offset_ms=cell.ending.offset_ms)
        return await (session.stop(budgets) if stop else session.ended(launch, budgets))
    async with alone(), anyio.create_task_group() as tasks:
        if is_killed:
            tasks.start_soon(session.assassinate, victim)
        receipt = await (
            session.stop(budgets) if cell.ending.name == "close" else session.ended(launch, budgets)
        )
        return receipt


def compare(cell, seen):
    """Raises Violation unless all that was seen tells of one and the same allowed outcome."""
    complaints = {one.ending: list(differences(one, seen)) for one in expected(cell)}
    if all(complaints.values()):
        told = "; ".join(f"not {ending}: {', '.join(found)}" for ending, found in complaints.items())
        raise Violation(f"{cell}: {told}; {seen}")


def differences(outcome, seen):
    receipt, census = seen.receipt, seen.census
    if not receipt.cleanup_confirmed or receipt.error is not None:
        yield f"receipt not clean ({receipt.error})"
    if receipt.return_code not in outcome.return_codes:
        yield f"return code {receipt.return_code}, expected {sorted(outcome.return_codes)}"
    elif seen.exit_code != told_by_exit(receipt.return_code):
        yield f"the launch ended with {seen.exit_code} for return code {receipt.return_code}"
    if receipt.timed_out != outcome.timed_out:
        yield f"timed_out is {receipt.timed_out}"
    lives = set(census["lives"]) - {"supervisor"}
    if lives != outcome.lives:
        yield f"alive are {sorted(lives)}, expected {sorted(outcome.lives)}"
    strangers = [one for one in census["marked"] if one not in seen.known.values()]
    if strangers:
        yield f"processes that came late live: {strangers}"
    if census["strangers_hit"]:
        yield f"processes of others were hit: {census['strangers_hit']}"
    yield from differences_of_report(outcome, seen)


def differences_of_report(outcome, seen):
    by_identity = {tuple(identity): name for name, identity in seen.known.items()}
    stands = {}
    for kind, entries in seen.report.items():
        for entry in entries:
            identity = (entry["pid"], entry["start_ticks"])
            name = by_identity.get(identity)
            if name is None and not (kind == "killed" and outcome.drains):
                yield f"{kind} lists somebody unknown: {entry}"
            elif name is not None:
                stands.setdefault(name, set()).add(kind)
    for name in seen.known.keys() - {"harness", "supervisor"}:
        allowed, found = outcome.listed[name], stands.get(name, set())
        if len(found) != 1 or not found <= allowed:
            yield f"{name} is listed as {sorted(found)}, expected {sorted(allowed)}"
    if not stands.get("harness", set()) <= {"killed"} or "supervisor" in stands:
        yield f"the harness or the supervisor is listed: {stands}"


def told_by_exit(return_code):
    return return_code if return_code >= 0 else 128 - return_code
