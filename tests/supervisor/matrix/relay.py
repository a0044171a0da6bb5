"""What a stop leaves of a run with a relay: the service, and seldom a runner that the report names."""

from .bench import Violation

CONFIRMED = "confirmed"


async def what_is_left(session, known):
    """Look around after a confirmed receipt.

    Returns:
        `CONFIRMED`, or that a runner was recorded, and by which words the report tells of it.

    Raises:
        Violation: Somebody lives whom the rules do not let live, or is dead whom they do.
    """
    census = await session.observe("census", known=known, writes=True)
    runner = await session.observe("runner") if census["holders"] else None
    if runner is not None:  # It has come to rest.
        census = await session.observe("census", known=known, writes=True)
    report, service = await session.report(), known["service"]
    if census["strangers_hit"]:
        raise Violation(f"processes of others were hit: {census['strangers_hit']}")
    others = [one for one in report["preserved"] if [one["pid"], one["start_ticks"]] != service]
    if len(others) == len(report["preserved"]) or report["unfinished"]:
        raise Violation(f"expected the service {service} to be preserved, and nobody unfinished: {report}")
    if runner is None:
        if census["marked"] != [service] or others:
            raise Violation(f"alive are {census['marked']}, expected {service} alone: {report}")
        return CONFIRMED
    require_that_it_was_told(runner, others, census["marked"], service)
    return f"a runner was recorded, {others[0]['reason']}"


def require_that_it_was_told(runner, others, marked, service):
    """A runner of the relay was adopted when the stop came, and had not come to exit before the end.

    So it is spared as a service is, with whoever is below it. The report has to name it, and nobody who is
    not of the relay; and who rests now is what became of it: nobody else may live.
    """
    if not others or not {one["pid"] for one in others} <= set(runner["line"]):
        raise Violation(f"the relay lives on as {runner}, and the report tells of {others}")
    if sorted(marked) != sorted([service, runner["identity"]]):
        raise Violation(f"alive are {marked}, expected the service {service} and {runner['identity']}")
