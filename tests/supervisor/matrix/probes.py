"""Questions about one rule each that no cell asks. Each raises Violation when the rule is broken."""

from functools import partial

from attrs import evolve

from inspan_core.errors import EvidenceMissing, HarnessTerminationError
from inspan_runtime import supervisor_client as client

from . import function_probes
from .bench import Budgets, SetupFailed, Violation, require
from .cells import try_cell
from .preludes import (
    BEFORE_OPENING,
    DEATH_BEFORE_CHILDREN,
    DEATH_BEFORE_RECORD,
    HIDE_ROW,
    HIDE_TABLE,
    statement,
)
from .relay import what_is_left
from .rules import ADOPTED, GROUP, SEED, UNDERWAY, Cell, Ending

BRIEF = Budgets(run_s=30.0, grace_s=1.0, cleanup_s=2.5, receipt_s=6.0)  # For who is expected to spend it.
HOPELESS = Budgets(run_s=30.0, grace_s=0.1, cleanup_s=0.8, receipt_s=8.0)  # Spent to the end.
STARTED = 'echo x >> "$WORK/started"; '
REPORT = 'report() { echo "$2" > "$WORK/$1.tmp" && mv "$WORK/$1.tmp" "$WORK/$1.pid"; }; '
TOOL = "setsid sh -c 'echo $$ > $WORK/t; mv $WORK/t $WORK/tool.pid; exec sleep 1000' & "
TOOL_AND_WAIT = REPORT + TOOL + "report harness $$; wait"
WAIT = "while :; do sleep 1000; done"
CROWD = 300
ONE_TOOL = {"processes": [{"name": "tool", "place": UNDERWAY, "above": None}], "is_stopped": False}
NOBODY = {"processes": [], "is_stopped": False}

# A child in the group that has something to save when the harness is dead.
SAVES = """
import os, signal
harness = os.getppid()
def save(number, frame):
    while open("/proc/%d/stat" % harness).read().rpartition(")")[2].split()[0] != "Z":
        pass
    for _ in range(100):
        os.fork() or os._exit(0)
        os.wait()
    open(os.environ["WORK"] + "/saved", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
with open(os.environ["WORK"] + "/child.pid", "w") as file:
    file.write(str(os.getpid()))
while True:
    signal.pause()
"""


def cell(kind, behaviour, ending, drain=SEED):
    """The matrix's own question, in the sandbox that a broken supervisor cannot leave."""
    return partial(ask_cell, Cell(kind, behaviour, Ending(ending), "bubblewrap", drain))


async def ask_cell(one, bench, source):
    await try_cell(bench, one, source=source, budgets=bench.budgets)


async def staged(bench, source, script, budgets=None):
    session = await bench.session(source)
    await session.stage(["/bin/sh", "-c", script], budgets or bench.budgets)
    return session


async def exists(session, path):
    return (await session.bench.sandbox.exec(["test", "-e", path], timeout_s=10)).exit_code == 0


async def refuses_to_launch(session, prelude=""):
    async with session.launched(prelude) as launch:
        code = await launch.exit_code(session.bench.budgets.receipt_s)
    require(code == 125, f"the launch ended with {code}, expected 125")
    require(not await exists(session, f"{session.work}/started"), "the harness was started")


async def a_lost_claim_launches_nothing(bench, source):
    session = await staged(bench, source, STARTED + "exit 0")
    prelude = statement(
        BEFORE_OPENING,
        name="launch.claim",
        before="os.close(real_open(path, os.O_CREAT | os.O_WRONLY))",
        after="",
    )
    await refuses_to_launch(session, prelude)


async def a_stop_fences_later_launches(bench, source):
    session = await staged(bench, source, STARTED + "exit 0")
    told = await client.stop_and_confirm_cleanup(
        bench.sandbox, session.dir, timeout_s=bench.budgets.receipt_s
    )
    require(isinstance(told, client.NeverLaunched), f"before any launch a stop tells {told}")
    await refuses_to_launch(session)
    require(not await exists(session, f"{session.dir}/launch.claim"), "a fenced launch has claimed")


async def a_stop_after_the_claim_launches_nothing(bench, source):
    session = await staged(bench, source, STARTED + "exit 0")
    after = f"os.close(real_open({session.dir + '/stop.request'!r}, os.O_CREAT | os.O_WRONLY))"
    await refuses_to_launch(
        session, statement(BEFORE_OPENING, name="launch.claim", before="pass", after=after)
    )
    receipt = await client.read_receipt(bench.sandbox, session.dir)
    require(receipt is not None and receipt.return_code is None, f"{receipt}, expected one of no run")


async def a_retired_folder_fences_later_launches(bench, source):
    session = await staged(bench, source, STARTED + "exit 0")
    await bench.sandbox.upload(f"{session.dir}.retired", b"")
    await refuses_to_launch(session)


async def a_relay_is_caught_and_its_neighbour_spared(bench, source):
    """Among others: of a few processes, a look is over before a relay has moved on."""
    await bench.add_strangers(max(0, CROWD - len(bench.strangers)), ["sleep", "100000"])
    session = await bench.session(source)
    await session.stage([bench.python, "-I", "-S", f"{bench.root}/storm.py", "harness"], bench.budgets)
    places = {"child": GROUP, "tool": UNDERWAY, "service": ADOPTED}
    processes = [{"name": name, "place": place, "above": None} for name, place in places.items()]
    async with session.launched() as launch:
        known = (await session.observe("ready", **{**NOBODY, "processes": processes}))["known"]
        await session.stop(bench.budgets)
        await what_is_left(session, known)
        await launch.exit_code()


async def orphans_are_reaped_during_the_run(bench, source):
    script = REPORT + "for i in $(seq 40); do (setsid true &); done; report harness $$; " + WAIT
    session = await staged(bench, source, script)
    async with session.launched():
        known = (await session.observe("ready", **NOBODY))["known"]
        left = await session.observe("zombies", parent=known["supervisor"][0], timeout_s=4.0)
        require(left["zombies"] == [], f"zombies stand during the run: {left}")
        await session.stop(bench.budgets)


async def what_is_hidden_is_no_proof(bench, source, prelude="", survivors=None):
    """A tool and a service live when the stop comes, and something of /proc cannot be read."""
    script = (
        REPORT
        + "(setsid sh -c 'echo $$ > $WORK/s; mv $WORK/s $WORK/service.pid; exec sleep 1000' &); "
        + TOOL
        + "report harness $$; wait"
    )
    session = await staged(bench, source, script, HOPELESS)
    places = {"tool": UNDERWAY, "service": ADOPTED}
    processes = [{"name": name, "place": place, "above": None} for name, place in places.items()]
    text = prelude.replace("{path!r}", repr(f"{session.work}/tool.pid"))
    text = text.replace("{stop!r}", repr(f"{session.dir}/stop.request"))
    async with session.launched(f"exec({text!r})"):
        known = (await session.observe("ready", **{**NOBODY, "processes": processes}))["known"]
        try:
            told = await client.stop_and_confirm_cleanup(
                bench.sandbox, session.dir, timeout_s=bench.budgets.receipt_s
            )
        except HarnessTerminationError as negative:
            require(not negative.receipt.cleanup_confirmed, "a negative receipt that confirms")
        except EvidenceMissing as missing:
            raise Violation(f"no receipt: {missing}") from missing
        else:
            raise Violation(f"what could not be read counts as proof: {told}")
        census = await session.observe("census", known=known, writes=False)
        require("service" in census["lives"], "a service was killed that nobody could tell from a tool")


a_hidden_table_is_no_proof = partial(what_is_hidden_is_no_proof, prelude=HIDE_TABLE.format(condition="True"))
a_hidden_process_is_no_proof = partial(what_is_hidden_is_no_proof, prelude=HIDE_ROW)
# Hidden once, when the stop comes, and readable afterwards: who was a service then stays unknown.
a_table_hidden_at_the_stop_is_no_record = partial(
    what_is_hidden_is_no_proof,
    prelude=HIDE_TABLE.format(
        condition="os.path.exists({stop!r}) and not hidden.append(1) and len(hidden) == 1"
    ).replace("import os", "import os\nhidden = []", 1),
)


async def a_look_after_the_exit_knows_no_services(bench, source):
    session = await staged(bench, source, TOOL_AND_WAIT)
    flag, pid = f"{session.work}/now", f"{session.work}/harness.pid"
    async with session.launched(statement(DEATH_BEFORE_CHILDREN, flag=flag, pid=pid)) as launch:
        known = (await session.observe("ready", **ONE_TOOL))["known"]
        await bench.sandbox.upload(flag, b"")
        await session.ended(launch, bench.budgets)
    await is_unfinished(session, known["tool"])


async def a_record_after_the_exit_knows_no_services(bench, source):
    """The stop came first, and the harness ended by itself before the first signal."""
    session = await staged(bench, source, TOOL_AND_WAIT)
    flag, pid = f"{session.dir}/stop.request", f"{session.work}/harness.pid"
    async with session.launched(statement(DEATH_BEFORE_RECORD, flag=flag, pid=pid)):
        known = (await session.observe("ready", **ONE_TOOL))["known"]
        await session.stop(bench.budgets)
    await is_unfinished(session, known["tool"])


async def is_unfinished(session, tool):
    listed = {kind: [one["pid"] for one in entries] for kind, entries in (await session.report()).items()}
    require(listed == {"killed": [], "preserved": [], "unfinished": [tool[0]]}, f"{listed}, {tool}")


async def a_receipt_is_the_last_word(bench, source):
    """Whoever sees it by chance, without waiting for the supervisor's end, may rely on it as well."""
    script = REPORT + TOOL + "trap '' TERM; report harness $$; " + WAIT
    session = await staged(bench, source, script, evolve(bench.budgets, grace_s=0.5))
    async with session.launched() as launch:
        known = (await session.observe("ready", **ONE_TOOL))["known"]
        await bench.sandbox.upload(f"{session.dir}/stop.request", b"")
        await session.observe("appears", paths=[f"{session.dir}/cleanup.json"])
        census = await session.observe("census", known=known, writes=False)
        require(census["marked"] == [], f"with the receipt there live {census['lives']}")
        await session.ended(launch, bench.budgets)


async def a_receipt_replaces_what_lies_in_its_place(bench, source):
    script = 'echo task > "$WORK/file"; ln "$WORK/file" "$DIR/cleanup.json"; exit 0'
    session = await staged(bench, source, script)
    async with session.launched() as launch:
        receipt = await session.ended(launch, bench.budgets)
    require(receipt.return_code == 0, f"{receipt}, expected 0")
    text = await client.read_text(bench.sandbox, path=f"{session.work}/file")
    require(text == "task\n", f"the receipt was written into the task's file: {text}")


async def an_exit_code_is_no_time_out(bench, source):
    for code in (124, 137):
        session = await staged(bench, source, f"exit {code}")
        async with session.launched() as launch:
            receipt = await session.ended(launch, bench.budgets)
        require((receipt.return_code, receipt.timed_out) == (code, False), f"{receipt} of exit {code}")


async def a_group_gets_its_grace(bench, source):
    """Not the harness alone."""
    script = REPORT + f"{bench.python} -I -S -c '{SAVES}' & report harness $$; wait"
    session = await staged(bench, source, script)
    processes = [{"name": "child", "place": GROUP, "above": None}]
    async with session.launched():
        await session.observe("ready", **{**NOBODY, "processes": processes})
        await session.stop(bench.budgets)
    require(
        await exists(session, f"{session.work}/saved"), "a child in the group was killed within the grace"
    )


async def a_held_zombie_does_not_block(bench, source):
    holder = (
        "import os, signal; pid = os.fork(); "
        "pid or os.kill(os.getpid(), 9); os.setpgid(0, 0); "
        "open(os.environ['WORK'] + '/holder.pid', 'w').write(str(os.getpid())); signal.pause()"
    )
    script = REPORT + f'{bench.python} -I -S -c "{holder}" & report harness $$; wait'
    session = await staged(bench, source, script)
    processes = [{"name": "holder", "place": UNDERWAY, "above": None}]
    async with session.launched() as launch:
        known = (await session.observe("ready", **{**NOBODY, "processes": processes}))["known"]
        await session.observe("bring_end", exit=True, kill=known["harness"][0], stop=False, offset_ms=0)
        receipt = await session.ended(launch, bench.budgets)
        require(receipt.return_code == -9, f"{receipt}, expected -9")


async def strangers_signals_change_nothing(bench, source):
    session = await staged(bench, source, REPORT + "report harness $$; " + WAIT)
    async with session.launched():
        known = (await session.observe("ready", **NOBODY))["known"]
        script = f"for name in TERM HUP INT PIPE USR1 ALRM; do kill -$name {known['supervisor'][0]}; done"
        await bench.sandbox.exec(["sh", "-c", script], timeout_s=10)
        census = await session.observe("census", known=known, writes=False)
        require("harness" in census["lives"], "a stranger's signal has stopped the harness")
        receipt = await session.stop(bench.budgets)
        require(receipt.return_code == -15, f"{receipt}, expected -15")


async def a_deleted_folder_is_no_run_that_never_was(bench, source):
    script = REPORT + 'report harness $$; while [ ! -e "$WORK/now" ]; do sleep 0.01; done; '
    script += 'rm -rf "$DIR"; : > "$WORK/deleted"; ' + WAIT
    session = await staged(bench, source, script)
    async with session.launched():
        await session.observe("ready", **NOBODY)
        await bench.sandbox.upload(f"{session.work}/now", b"")
        paths = [f"{session.work}/deleted", f"{session.dir}/launch.claim"]
        try:
            await session.observe("appears", paths=paths, timeout_s=3.0)
        except SetupFailed as missing:
            raise Violation(f"a stop would find no launch: {missing}") from missing
        receipt = await session.stop(bench.budgets)
        require(receipt.return_code == -15, f"{receipt}, expected -15")


PROBES = {
    name: function
    for name, function in sorted({**globals(), **vars(function_probes)}.items())
    if name.split("_")[0] in ("a", "an", "orphans", "strangers")
}
