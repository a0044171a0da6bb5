"""Who must be dead, who must live, and what the receipt and the report say: for every cell of the matrix.

A cell is a kind of child, a way in which the harness behaves, an ending, a provider and a way of draining.
The rules do not look at the provider: what is promised is the same on each.
"""

from itertools import product

from attrs import frozen

PROVIDERS = ("local", "bubblewrap")
GROUP, ADOPTED, UNDERWAY = "in the group", "adopted before the end", "underway"
SEED, EVERYBODY = "seed", "all"
NATURAL, FORCED = "natural", "forced"
KILLED, PRESERVED, UNFINISHED = "killed", "preserved", "unfinished"


@frozen
class Process:
    """One process that a kind of child consists of.

    `place` is GROUP (of the harness's process group), ADOPTED (outside of it, its parent has exited) or
    UNDERWAY (outside of it, its parent lives). `above` names that parent, None: the harness. `writes`: it can
    be told to write.
    """

    name: str
    place: str
    above: str | None = None
    writes: bool = True


KINDS = {
    "child in the group": (Process("child", GROUP),),
    "own session": (Process("child", UNDERWAY),),
    "own session, its first thread has ended": (Process("child", UNDERWAY),),
    "double fork": (Process("child", ADOPTED),),
    "nohup & of a shell in the group": (Process("child", GROUP),),
    "nohup & of a shell in its own session": (Process("child", ADOPTED),),
    "plain & of a shell in the group": (Process("child", GROUP),),
    "plain & of a shell in its own session": (Process("child", ADOPTED),),
    "tmux": (Process("server", ADOPTED, writes=False), Process("pane", UNDERWAY, above="server")),
    "grandchildren that orphan more": (
        Process("tool", UNDERWAY),
        Process("grandchild", UNDERWAY, above="tool"),
        Process("orphan", ADOPTED, writes=False),
    ),
}


@frozen(kw_only=True)
class Behaviour:
    """How the harness ends by itself, and what SIGTERM makes of it.

    `own_code` is None for one that never ends by itself. `lingers`: it, or something that it starts on
    SIGTERM in its group, waits for the SIGKILL; the others get a grace that they never use up.
    """

    own_code: int | None = 3
    forced_code: int
    lingers: bool = False
    forks: bool = False
    is_stopped: bool = False


BEHAVIOURS = {
    "exits": Behaviour(forced_code=-15),
    "exits on TERM": Behaviour(forced_code=5),
    "ignores TERM": Behaviour(forced_code=-9, lingers=True),
    "is killed by somebody else": Behaviour(own_code=-9, forced_code=-9),
    "forks on TERM": Behaviour(forced_code=5, lingers=True, forks=True),
    "stops itself": Behaviour(own_code=None, forced_code=-15, is_stopped=True),
}


@frozen
class Ending:
    """`offset_ms` is when a racing stop comes, after (below zero: before) the harness is told to exit."""

    name: str
    offset_ms: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.offset_ms:+d} ms" if self.name == "race" else self.name


ENDINGS = (
    Ending("natural"),
    Ending("deadline"),
    Ending("close"),
    *(Ending("race", offset_ms) for offset_ms in (-5, -2, 0, 1, 2, 3, 4, 5)),
)


@frozen
class Cell:
    """One combination."""

    kind: str
    behaviour: str
    ending: Ending
    provider: str
    drain: str = SEED

    def __str__(self) -> str:
        drain = "" if self.drain == SEED else f", drain {self.drain}"
        return f"{self.kind}, {self.behaviour}, {self.ending}, {self.provider}{drain}"


def excluded_because(cell: Cell) -> str | None:
    """Why the cell makes no sense, or None: the only reason is an ending that can never come."""
    if cell.ending.name in ("natural", "race") and BEHAVIOURS[cell.behaviour].own_code is None:
        return "a harness that never ends by itself has no natural exit, and nothing to race with"
    return None


ALL = tuple(Cell(*axes) for axes in product(KINDS, BEHAVIOURS, ENDINGS, PROVIDERS, (SEED, EVERYBODY)))
CELLS = tuple(cell for cell in ALL if excluded_because(cell) is None)


@frozen(kw_only=True)
class Outcome:
    """One allowed way in which a cell may end: everything that is seen has to tell of this one.

    `drains`: others may be killed than those that were known before. `lives` are the names of the survivors.
    `listed` says in which lists of the report a name may stand, in exactly one of them.
    """

    ending: str
    return_codes: frozenset[int]
    timed_out: bool
    drains: bool
    lives: frozenset[str]
    listed: dict[str, frozenset[str]]


def expected(cell: Cell) -> tuple[Outcome, ...]:
    """One outcome; for a race both endings, since either may win."""
    behaviour = BEHAVIOURS[cell.behaviour]
    natural, forced = {behaviour.own_code} - {None}, {behaviour.forced_code}
    match cell.ending.name:
        case "natural":
            return (outcome(cell, NATURAL, natural),)
        case "race":  # Whoever was told to exit may still do so after the stop has won.
            return (outcome(cell, NATURAL, natural), outcome(cell, FORCED, natural | forced))
        case _:
            return (outcome(cell, FORCED, forced),)


def outcome(cell: Cell, ending: str, return_codes: set[int]) -> Outcome:
    processes = {process.name: process for process in KINDS[cell.kind]}
    lives = frozenset(
        name
        for name, process in processes.items()
        if cell.drain == SEED and survives(process, processes, ending)
    )
    return Outcome(
        ending=ending,
        return_codes=frozenset(return_codes),
        timed_out=cell.ending.name == "deadline",
        drains=ending == FORCED or cell.drain == EVERYBODY,
        lives=lives,
        listed={name: listing(process, processes, ending, lives) for name, process in processes.items()},
    )


def survives(process: Process, processes: dict[str, Process], ending: str) -> bool:
    """The group dies with every ending; the rest only when forced, and then unless a service is above it."""
    if process.place == GROUP:
        return False
    if ending == NATURAL or process.place == ADOPTED:
        return True
    return process.above is not None and survives(processes[process.above], processes, ending)


def listing(
    process: Process, processes: dict[str, Process], ending: str, lives: frozenset[str]
) -> frozenset[str]:
    """Survivors are listed as whoever is above them and under the supervisor at the end."""
    if process.name not in lives:
        return frozenset({KILLED})
    if process.above is not None:
        return listing(processes[process.above], processes, ending, lives)
    if process.place == UNDERWAY:
        return frozenset({UNFINISHED})
    # At a natural exit only who was adopted before the last look around is known as a service.
    return frozenset({PRESERVED} if ending == FORCED else {PRESERVED, UNFINISHED})


def class_of(cell: Cell) -> object:
    """Two cells are of one class when the rules see no difference between them.

    Where everybody is drained, no rule asks where a process stands.
    """
    behaviour = BEHAVIOURS[cell.behaviour]
    processes = KINDS[cell.kind]
    depth = {process.name: 0 if process.above is None else 1 for process in processes}
    places = [(one.place, depth[one.name]) if cell.drain == SEED else None for one in processes]
    outcomes = expected(cell)
    is_forced = outcomes[-1].ending == FORCED
    fates = [
        (
            one.ending,
            one.return_codes,
            one.timed_out,
            frozenset(
                (place, process.name in one.lives, one.listed[process.name])
                for place, process in zip(places, processes, strict=True)
            ),
        )
        for one in outcomes
    ]
    return (cell.drain, is_forced and behaviour.forks, is_forced and behaviour.is_stopped, *fates)


def representatives(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """One cell of each class, chosen so that the values of every axis take turns."""
    classes: dict[object, list[Cell]] = {}
    for cell in cells:
        classes.setdefault(class_of(cell), []).append(cell)
    used: dict[object, int] = {}
    chosen = []
    for members in classes.values():
        best = min(members, key=lambda cell: [used.get(value, 0) for value in axes_of(cell)])
        for value in axes_of(best):
            used[value] = used.get(value, 0) + 1
        chosen.append(best)
    return tuple(chosen)


def axes_of(cell: Cell) -> tuple[object, ...]:
    return (cell.drain, cell.provider, cell.kind, cell.behaviour, cell.ending)
