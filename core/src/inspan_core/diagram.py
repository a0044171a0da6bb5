"""Pictures and pages of the machine, made from its tables and from nothing else."""

from collections.abc import Callable, Iterator, Mapping

from inspan_core.diagram_svg import svg as _svg
from inspan_core.events import NOTICE_TYPES, REQUEST_TYPES, Signal
from inspan_core.rules import Ignored, Refused, Row, Rule, Rung
from inspan_core.session import Phase, RunPhase
from inspan_core.tables import LADDERS, LEARN, SESSION, Key

COLUMNS: tuple[Key, ...] = (*REQUEST_TYPES, *NOTICE_TYPES, *Signal)
"""The events and signals of the page, in its order."""


def key_name(key: Key) -> str:
    """Name an event or signal."""
    return key.value if isinstance(key, Signal) else key.__name__


def mermaid() -> str:
    """Draw the session's phases as a mermaid state diagram, one arrow for each pair of phases.

    Returns:
        The text that goes between the fences, with a final newline.
    """
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.NEW.value}"]
    lines.extend(f"    {start} --> {end}: {', '.join(names)}" for start, end, names in _arrows())
    return "\n".join(lines) + "\n"


def dot() -> str:
    """Draw the session's phases as a graph for Graphviz.

    Returns:
        A whole ``digraph``, with a final newline.
    """
    lines = ["digraph session {", "    rankdir=TB", "    node [shape=box, style=rounded]"]
    lines.append(f'    start [shape=point, label=""]\n    start -> {Phase.NEW.value}')
    lines.extend(f'    {start} -> {end} [label="{_lines(names)}"]' for start, end, names in _arrows())
    return "\n".join([*lines, "}"]) + "\n"


def _lines(names: list[str]) -> str:
    return "\\n".join(names)


def svg() -> str:
    """Draw the session's phases as a picture.

    Returns:
        A whole SVG document, with a final newline.
    """
    return _svg([phase.value for phase in SESSION], list(_arrows()))


def page() -> str:
    """Write the documentation's page of the machine: the diagram, which lies beside it, and the tables.

    Returns:
        Markdown, with a final newline.
    """
    return (
        "# The session machine\n\n"
        "Made from the tables in `inspan_core.tables` by `make docs`; that file explains them. Rows for "
        "signals that cannot come in a phase are left out.\n\n"
        f"![The phases of a session](machine.svg)\n\n{markdown()}"
    )


def _arrows() -> Iterator[tuple[str, str, list[str]]]:
    for phase, rows in SESSION.items():
        names: dict[Phase, list[str]] = {}
        for key in COLUMNS:
            row = rows[key]
            if isinstance(row, Rule):
                for to in sorted(row.to - {phase}, key=lambda target: target.value):
                    names.setdefault(to, []).append(key_name(key))
        yield from ((phase.value, to.value, found) for to, found in names.items())


def markdown() -> str:
    """Write the three tables as a page of markdown.

    Returns:
        SESSION by phase, LADDERS by goal, and LEARN by run phase, with a final newline.
    """
    return "\n".join([*_session_page(), "", *_ladders_page(), "", *_learn_page()]) + "\n"


def _session_page() -> Iterator[str]:
    yield "### SESSION"
    for phase, rows in SESSION.items():
        yield from ("", f"**{phase.value}**", "", "| event or signal | what becomes of it |", "| --- | --- |")
        yield from (
            f"| {key_name(key)} | {_said(phase, rows[key])} |"
            for key in COLUMNS
            if not _silent(key, rows[key])
        )


def _silent(key: Key, row: Row) -> bool:
    return isinstance(key, Signal) and isinstance(row, Refused)


def _said(phase: Phase, row: Row) -> str:
    match row:
        case Rule(handler=handler, to=to):
            targets = ", ".join(sorted(target.value for target in to)) or phase.value
            return f"{handler.__name__.replace('_', ' ')} → {targets}"
        case Ignored(reason=reason):
            return f"ignored: {reason}"
        case Refused(status=None, reason=reason):
            return f"error: {reason}"
        case Refused(status=status, reason=reason):
            return f"{status}: {reason}"


def _ladders_page() -> Iterator[str]:
    yield "### LADDERS"
    for goal, ladder in LADDERS.items():
        yield from ("", f"**{goal.value}**", "")
        yield from (f"{number}. {rung.says} → {_target(rung)}" for number, rung in enumerate(ladder, start=1))


def _target(rung: Rung) -> str:
    return rung.then.value if isinstance(rung.then, RunPhase) else f"*{rung.then.value}*"


def _learn_page() -> Iterator[str]:
    yield from ("### LEARN", "", "| in flight | answer | facts |", "| --- | --- | --- |")
    for run_phase, lessons in LEARN.items():
        for kind, lesson in lessons.items():
            facts = [f"{name}: {_fact(value)}" for name, value in lesson.facts.items()]
            if lesson.note is not None:
                facts.append(lesson.note.__name__.replace("_", " "))
            if lesson.fails:
                facts.append("*the step failed*")
            yield f"| {run_phase.value} | {kind.__name__} | {', '.join(facts) or 'nothing'} |"


def _fact(value: object) -> str:
    return str(getattr(value, "value", value)).lower()


FORMATS: Mapping[str, Callable[[], str]] = {"table": markdown, "mermaid": mermaid, "dot": dot, "svg": svg}
"""What `inspan machine show --format` prints, by name."""
