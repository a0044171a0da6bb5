"""The session's phases as a picture in SVG, laid out in layers, by nothing but this file.

Arrows one layer down are straight. All others leave below their row, follow a lane of their own beside the
boxes, and come in above: forward arrows on the left, those that lead back on the right.
"""

from collections.abc import Sequence
from html import escape

from attrs import define, field, frozen

Arrow = tuple[str, str, list[str]]

BOX_WIDTH, BOX_HEIGHT, GAP = 150, 34, 120
COLUMN_WIDTH, LANE_WIDTH, MARGIN = 260, 112, 20
LINE_HEIGHT, PORT_STEP = 13, 7
STYLE = (
    "text{font:11px monospace;fill:#222} .phase{font-weight:bold;text-anchor:middle}"
    " rect{fill:#f4f4f0;stroke:#444} path{fill:none;stroke:#777;marker-end:url(#head)}"
)


@frozen
class Label:
    """Words at a place: left, top, and one line for each."""

    left: float
    top: float
    lines: tuple[str, ...]


@define
class Picture:
    """What is drawn: boxes by phase (left, top), paths, labels, and the size of it all."""

    boxes: dict[str, tuple[float, float]]
    width: float = 0
    height: float = 0
    paths: list[str] = field(factory=list[str])
    labels: list[Label] = field(factory=list[Label])


def ranks(phases: Sequence[str], arrows: Sequence[Arrow]) -> dict[str, int]:
    """Layer each phase below all that lead to it from an earlier one; arrows back do not count."""
    place = {phase: number for number, phase in enumerate(phases)}
    found: dict[str, int] = {phases[0]: 0}
    for _ in phases:
        for start, end, _names in arrows:
            if start in found and end != phases[0] and place[start] < place[end]:
                found[end] = max(found.get(end, 0), found[start] + 1)
        for start, end, _names in arrows:
            if start in found and end not in found and not _led_to(end, arrows, place):
                found[end] = found[start] + 1
    return found


def _led_to(phase: str, arrows: Sequence[Arrow], place: dict[str, int]) -> bool:
    return any(end == phase and place[start] < place[end] for start, end, _ in arrows)


def laid_out(phases: Sequence[str], arrows: Sequence[Arrow]) -> Picture:
    """Place the boxes, arrows and words."""
    rank = ranks(phases, arrows)
    rows = [[phase for phase in phases if rank[phase] == row] for row in range(max(rank.values()) + 1)]
    lanes = [arrow for arrow in arrows if rank[arrow[1]] != rank[arrow[0]] + 1]
    forward = sum(rank[end] > rank[start] for start, end, _ in lanes)
    left = MARGIN + forward * LANE_WIDTH
    boxes: dict[str, tuple[float, float]] = {
        phase: (left + column * COLUMN_WIDTH, MARGIN + GAP + row * (BOX_HEIGHT + GAP))
        for row, members in enumerate(rows)
        for column, phase in enumerate(members)
    }
    right = left + max(map(len, rows)) * COLUMN_WIDTH
    picture = Picture(boxes)
    picture.width = right + (len(lanes) - forward) * LANE_WIDTH + MARGIN
    picture.height = MARGIN + len(rows) * (BOX_HEIGHT + GAP) + GAP
    ports = {phase: [0, 0] for phase in phases}
    lefts, rights = left, right - LANE_WIDTH
    for start, end, names in arrows:
        (from_x, from_y), (to_x, to_y) = _ports(boxes, ports, start, end)
        if rank[end] == rank[start] + 1:
            picture.paths.append(f"M{from_x} {from_y} L{to_x} {to_y}")
            middle = (from_x + to_x) / 2
            picture.labels.append(_clear(picture, Label(middle + 6, from_y + 34, tuple(names))))
            continue
        if rank[end] > rank[start]:
            lefts -= LANE_WIDTH
            lane = lefts
        else:
            rights += LANE_WIDTH
            lane = rights
        below, above = from_y + 8 + 5 * ports[start][0], to_y - 8 - 5 * ports[end][1]
        picture.paths.append(f"M{from_x} {from_y} V{below} H{lane} V{above} H{to_x} V{to_y}")
        picture.labels.append(_clear(picture, Label(lane + 4, (below + above) / 2, tuple(names))))
    return picture


def _ports(
    boxes: dict[str, tuple[float, float]], used: dict[str, list[int]], start: str, end: str
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The next free places at the bottom of one box and at the top of the other."""
    used[start][0] += 1
    used[end][1] += 1
    (from_left, from_top), (to_left, to_top) = boxes[start], boxes[end]
    out = from_left + BOX_WIDTH / 2 + _aside(used[start][0])
    into = to_left + BOX_WIDTH / 2 + _aside(used[end][1])
    return (out, from_top + BOX_HEIGHT), (into, to_top)


def _aside(number: int) -> int:
    return (number // 2) * PORT_STEP * (1 if number % 2 else -1)


def _clear(picture: Picture, label: Label) -> Label:
    """Move a label down until it covers no other."""
    while any(_covers(label, other) for other in picture.labels):
        label = Label(label.left, label.top + LINE_HEIGHT, label.lines)
    return label


def _covers(one: Label, other: Label) -> bool:
    return (
        one.left < other.left + width_of(other)
        and other.left < one.left + width_of(one)
        and one.top < other.top + len(other.lines) * LINE_HEIGHT
        and other.top < one.top + len(one.lines) * LINE_HEIGHT
    )


def width_of(label: Label) -> float:
    """How wide the words are, at most."""
    return max(map(len, label.lines)) * 6.7


def svg(phases: Sequence[str], arrows: Sequence[Arrow]) -> str:
    """Draw it.

    Args:
        phases: The boxes; the first is where a session begins.
        arrows: From, to, and the events that lead there.

    Returns:
        A whole SVG document, with a final newline.
    """
    picture = laid_out(phases, arrows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {picture.width:g} {picture.height:g}">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" style="fill:#777;stroke:none;marker-end:none"/>'
        "</marker></defs>",
    ]
    lines.extend(f'<path d="{path}"/>' for path in picture.paths)
    for phase, (left, top) in picture.boxes.items():
        lines.append(f'<rect x="{left:g}" y="{top:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>')
        centre = left + BOX_WIDTH / 2
        lines.append(f'<text class="phase" x="{centre:g}" y="{top + 21:g}">{escape(phase)}</text>')
    for label in picture.labels:
        lines.extend(
            f'<text x="{label.left:g}" y="{label.top + number * LINE_HEIGHT:g}">{escape(words)}</text>'
            for number, words in enumerate(label.lines)
        )
    return "\n".join([*lines, "</svg>"]) + "\n"
