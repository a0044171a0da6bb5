"""Supervisors with one rule switched off each: edits of the source, and the question that finds it out."""

from collections.abc import Callable

from attrs import frozen

from inspan_supervisor import supervisor_source

from . import function_probes, probes
from .probes import cell
from .rules import EVERYBODY


@frozen
class Mutant:
    """`edits` are pairs of old and new text; each old text stands in the source exactly once.

    `tries`: how often it is asked before it counts as not found out, where chance has a part in it.
    """

    name: str
    asked: Callable
    edits: tuple[tuple[str, str], ...]
    tries: int = 1

    def source(self) -> bytes:
        """Raises LookupError when an edit does not apply."""
        text = supervisor_source().decode()
        for old, new in self.edits:
            if text.count(old) != 1:
                raise LookupError(
                    f"{self.name}: {text.count(old)} times in the source, expected once: {old!r}"
                )
            text = text.replace(old, new)
        return text.encode()


def mutant(name, asked, *edits, tries=1):
    return Mutant(name, asked, edits, tries)


TERM = "attempt(GONE, os.killpg, self.leader, signal.SIGTERM)"
RECORD = "self.spared = {p.identity for p in self.children(table) if p.group != self.leader}"
FIRST_LOOK = "table = [] if alone else"
EARLY_TERM = (
    f'if ending != "exit":\n            {TERM}\n'
    "            os.waitid(os.P_PID, self.leader, os.WEXITED | os.WNOWAIT)\n        "
)
HARNESS_LIVES = "if not self.is_over():  # Else the"
KILL_GROUP = "attempt(GONE, os.killpg, self.leader, signal.SIGKILL)\n        while"
STRIKE_GROUP = 'found.update({p.pid: (p, "group") for p in table if p.group == self.group})'
OURS = "if p.parent == self.me and p.identity not in self.spared]"
BELOW_OURS = "for p in below(table, ours)})"
BELOW_ALL = (
    "for p in below(table, ours + [q for p in self.children(table) if p.identity in self.spared"
    " for q in table if q.parent == p.pid])})"
)
CHASE_FOUND = "found = [pid for pid in attempt(OSError, self.child_pids) or [] if pid not in spared]"
CHASE = f"for _ in range(SWATS if self.drains else 0):\n            {CHASE_FOUND}"
CHASE_ONE_LOOK = f"{CHASE_FOUND}\n        for _ in range(SWATS if self.drains else 0):"
CHASE_KILLS = "            for pid in found:\n"
CLAIM = 'write(run.marks[0], NEW_FILE, b"%d\\n" % run.me)\n    except'
END_BEGINS = 'within the clean-up budget."""\n        '
EARLY_RECEIPT = (
    'put(self.directory, "cleanup.json", {"cleanup_confirmed": True, "return_code": -9, '
    '"error": None, "timed_out": False})\n        '
)
STOP_IS_THERE = "if any(os.path.lexists(self.directory + fence) for fence in FENCES):\n                return"

SERVICE = cell("double fork", "exits", "close")
TOOL = cell("own session", "exits", "close")
STUBBORN = cell("own session", "ignores TERM", "close")
STOPPED = cell("child in the group", "stops itself", "close")
OBEDIENT = cell("own session", "exits on TERM", "close")
HEADLESS = cell("own session, its first thread has ended", "exits", "close")
TMUX = cell("tmux", "exits", "close")
FAMILY = cell("grandchildren that orphan more", "exits", "close")
LATE = cell("own session", "exits", "deadline")
NATURAL_TOOL = cell("own session", "exits", "natural")
ALL_TOOL = cell("own session", "exits", "natural", EVERYBODY)
NATURAL_GROUP = cell("child in the group", "exits", "natural")

SIGNALS = (
    mutant("no record before the first signal", SERVICE, (RECORD, "self.spared = set()")),
    mutant(
        "the record is taken after the first signal",
        TOOL,
        (f"            {TERM}\n", ""),
        (FIRST_LOOK, EARLY_TERM + FIRST_LOOK),
    ),
    mutant("no SIGTERM", TOOL, (TERM, "pass")),
    mutant("SIGTERM to everybody", TOOL, (TERM, "attempt(GONE, os.kill, -1, signal.SIGTERM)")),
    mutant(
        "SIGTERM to another group", TOOL, (TERM, "attempt(GONE, os.killpg, os.getpgrp(), signal.SIGTERM)")
    ),
    mutant("no SIGCONT", STOPPED, ("attempt(GONE, os.killpg, self.leader, signal.SIGCONT)", "pass")),
    mutant("no SIGKILL after the grace", STUBBORN, (KILL_GROUP, "while")),
    mutant(  # One that is quick with its exit may be done before the SIGKILL.
        "no grace", OBEDIENT, ('self.await_group(self.ended_at + self.command["grace_s"])', "pass"), tries=8
    ),
    mutant(
        "only the harness gets the grace",
        probes.a_group_gets_its_grace,
        ("if dead and not any(", "if dead or any("),
    ),
    mutant(
        "the group is not killed",
        NATURAL_GROUP,
        (KILL_GROUP, KILL_GROUP.replace("killpg", "kill")),
        (STRIKE_GROUP, "pass"),
    ),
    mutant("no group of its own", SERVICE, ("            os.setsid()\n", "")),
    mutant(
        "the harness is deaf to signals",
        probes.strangers_signals_change_nothing,
        ("set_signals(signal.SIG_DFL, ())", "pass"),
    ),
)
DRAINING = (
    mutant(
        "drain once",
        probes.a_relay_is_caught_and_its_neighbour_spared,
        ("self.swat()\n", "return True\n"),
        tries=8,
    ),
    mutant(
        "the chase of relays spares nobody",
        probes.a_relay_is_caught_and_its_neighbour_spared,
        ("or [] if pid not in spared]", "or []]"),
    ),
    mutant(
        "the chase goes on with the pids of its first look",
        function_probes.a_chase_signals_only_its_own_children,
        (CHASE, CHASE_ONE_LOOK),
    ),
    mutant(
        "the chase reaps before it kills",
        function_probes.a_chase_signals_only_its_own_children,
        (CHASE_KILLS, "            self.reap_all()\n" + CHASE_KILLS),
    ),
    mutant(
        "who dies in a tracer's hands is nobody's parent",
        function_probes.a_death_in_a_tracers_hands_is_no_proof,
        (" and dead <= self.held", ""),
    ),
    mutant("recorded services are not spared", SERVICE, (OURS, "if p.parent == self.me]")),
    mutant(
        "who has the pid of a dead service is spared",
        function_probes.a_spared_pid_of_somebody_else_is_not_spared,
        (OURS, "if p.parent == self.me and p.pid not in dict(self.spared)]"),
    ),
    mutant("who is below a service is drained", TMUX, (BELOW_OURS, BELOW_ALL)),
    mutant("detached tools die with a natural exit", NATURAL_TOOL, (HARNESS_LIVES, "if True:  # Else the")),
    mutant(
        "nothing is drained",
        TOOL,
        ("            self.drains = True\n            running", "            running"),
    ),
    mutant("no subreaper", TOOL, ('call_libc("prctl", 36, 1, 0', 'call_libc("prctl", 36, 0, 0')),
    mutant(
        "no reaping during the run",
        probes.orphans_are_reaped_during_the_run,
        (
            "while (found := os.waitid(os.P_ALL, 0, PEEK))",
            "while (found := os.waitid(os.P_PID, self.leader, PEEK))",
        ),
    ),
    # Whoever is dead and cannot be waited for makes the look another one, with a chase before it.
    mutant(
        "a process is dead with its first thread",
        HEADLESS,
        (" or int(fields[17]) > 1", ""),
        (" and dead <= self.held", ""),
    ),
    mutant(
        "a zombie counts as living",
        probes.a_held_zombie_does_not_block,
        ('self.lives = fields[0] not in (b"Z", b"X", b"x")', "self.lives = True"),
    ),
)
PROOFS = (
    mutant(
        "an unreadable process is gone",
        probes.a_hidden_process_is_no_proof,
        ('raise Unreadable(f"/proc/{pid}/stat: {error}") from None', "return None"),
    ),
    mutant(
        "an unreadable table is empty",
        probes.a_hidden_table_is_no_proof,
        ('raise Unreadable("/proc is missing', 'return [] and ("/proc is missing'),
        ("            if table:\n", "            if True:\n"),
    ),
    mutant(
        "what was unreadable at the stop is forgotten",
        probes.a_table_hidden_at_the_stop_is_no_record,
        ('raise Unreadable("/proc could not be read when the stop came")', "self.spared = set()"),
    ),
    mutant(
        "a spent budget confirms",
        probes.a_hidden_table_is_no_proof,
        ("self.error = problem\n                return False", "return True"),
    ),
    mutant(
        "no identity check before a kill",
        function_probes.a_pid_of_somebody_else_is_not_killed,
        ("if now and now.identity == process.identity and", "if now and"),
    ),
    mutant(
        "who is adopted from the dead harness is a service",
        probes.a_look_after_the_exit_knows_no_services,
        ("if found is not None and not self.is_over():", "if found is not None:"),
    ),
    mutant(
        "a record taken from the dead harness counts",
        probes.a_record_after_the_exit_knows_no_services,
        (HARNESS_LIVES, 'if ending != "exit":  # Else the'),
    ),
)
FENCES = (
    mutant("no claim", probes.a_lost_claim_launches_nothing, (CLAIM, "pass\n    except")),
    mutant(
        "the claim is not exclusive",
        probes.a_lost_claim_launches_nothing,
        (CLAIM, CLAIM.replace("NEW_FILE", "NEW_FILE & ~os.O_EXCL")),
    ),
    mutant(
        "no fence check before the claim",
        probes.a_stop_fences_later_launches,
        ("    check_fences(directory)\n    if os", "    if os"),
    ),
    mutant(
        "no fence check after the claim",
        probes.a_stop_after_the_claim_launches_nothing,
        ("check_fences(directory)  # Whoever", "pass  # Whoever"),
    ),
    mutant(
        "a retired folder is used",
        probes.a_retired_folder_fences_later_launches,
        ("if os.path.lexists(directory + fence):", 'if os.path.lexists(directory + "/stop.request"):'),
    ),
    mutant(
        "a deleted claim is not made again",
        probes.a_deleted_folder_is_no_run_that_never_was,
        ("all(map(os.path.lexists, self.marks)) or attempt(OSError, self.settle)", "True"),
    ),
)
ENDS = (
    mutant("a stop request is not noticed", TOOL, (STOP_IS_THERE, "if False:\n                return")),
    mutant("the deadline passes unnoticed", LATE, (".monotonic()) >= deadline", ".monotonic()) < 0")),
    mutant(
        "strangers' signals are taken",
        probes.strangers_signals_change_nothing,
        ("set_signals(signal.SIG_IGN, WAKING)", "set_signals(signal.SIG_DFL, WAKING)"),
    ),
)
WRITINGS = (
    mutant(
        "the receipt comes before the drain",
        probes.a_receipt_is_the_last_word,
        (END_BEGINS, END_BEGINS + EARLY_RECEIPT),
    ),
    mutant(
        "the receipt is not atomic",
        probes.a_receipt_replaces_what_lies_in_its_place,
        ('draft, final = f"{directory}/.{name}.{os.getpid()}"', 'draft, final = f"{directory}/{name}"'),
    ),
    mutant(
        "timed_out is read from the exit code",
        probes.an_exit_code_is_no_time_out,
        ('"timed_out": self.timed_out}', '"timed_out": self.code in (124, 137)}'),
    ),
    mutant(
        "the deadline is not told",
        LATE,
        (
            "(now := time.monotonic()) >= deadline\n            if self.timed_out:",
            "False\n            if (now := time.monotonic()) >= deadline:",
        ),
    ),
    mutant(
        "the exit code is lost", NATURAL_TOOL, ("self.code = os.WEXITSTATUS(status) if", "self.code = 0 if")
    ),
    mutant(
        "a signal is told as an exit code",
        SERVICE,
        ("else -os.WTERMSIG(status)", "else 128 + os.WTERMSIG(status)"),
    ),
    mutant("the report is dropped", SERVICE, ('put(self.directory, "processes.json", dict(', "dict(dict(")),
    mutant(
        "the unfinished are called services",
        NATURAL_TOOL,
        ('kind, reason = "unfinished"', 'kind, reason = "preserved"'),
    ),
    mutant(
        "the killed are not reported",
        TOOL,
        ('self.note("killed", process, reason)', "pass"),
        ('self.note("killed", process, "adopted")', "pass"),
    ),
)
MUTANTS = (*SIGNALS, *DRAINING, *PROOFS, *FENCES, *ENDS, *WRITINGS)

EQUIVALENT = (
    # Whoever of the group lives on is found and killed by the look that the drain begins with.
    mutant(
        "only the harness gets the SIGKILL", NATURAL_GROUP, (KILL_GROUP, KILL_GROUP.replace("killpg", "kill"))
    ),
    # When a tool dies, its children become ours, and the next look strikes them: it takes a round longer.
    mutant("only children are struck", FAMILY, (BELOW_OURS, "for p in ours})")),
)
"""Edits that change nothing that is promised, and why. The chase of relays is in neither list: without it a
look catches a relay by luck, sooner or later, and nothing is confirmed before."""
