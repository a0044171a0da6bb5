"""Who dies, who lives and what the receipt says, for each way in which a run can end."""

import os

import pytest

# Each child reports its pid under a name. "service" and "background" are adopted before the end because the
# shell that started them has exited; "tool" and "family" are still below the harness.
CHILDREN = """
sh -c 'report() { echo "$2" > "$WORK/$1.tmp" && mv "$WORK/$1.tmp" "$WORK/$1.pid"; }
       report plain $$; exec sleep 1000' &
(nohup sh -c 'echo $$ > "$WORK/background.tmp"; mv "$WORK/background.tmp" "$WORK/background.pid"
       exec sleep 1000' > /dev/null 2>&1 &)
(setsid sh -c 'echo $$ > "$WORK/service.tmp"; mv "$WORK/service.tmp" "$WORK/service.pid"
       exec sleep 1000' > /dev/null 2>&1 &)
setsid sh -c 'echo $$ > "$WORK/tool.tmp"; mv "$WORK/tool.tmp" "$WORK/tool.pid"
       while :; do echo >> "$WORK/written"; done' &
setsid sh -c '(setsid sh -c "echo \\$\\$ > $WORK/orphan.tmp; mv $WORK/orphan.tmp $WORK/orphan.pid
                             exec sleep 1000" &)
       sh -c "echo \\$\\$ > $WORK/grandchild.tmp; mv $WORK/grandchild.tmp $WORK/grandchild.pid
              exec sleep 1000" &
       echo $$ > "$WORK/family.tmp"; mv "$WORK/family.tmp" "$WORK/family.pid"; wait' &
"""
IN_GROUP = {"plain", "background"}
ADOPTED = {"service", "orphan"}  # The orphan's parent is in another session, but ended just as the service's.
UNDERWAY = {"tool", "family", "grandchild"}
EVERYBODY = IN_GROUP | ADOPTED | UNDERWAY

WAIT_FOR_GO = 'while [ ! -e "$WORK/go" ]; do sleep 0.01; done\n'
HARNESSES = {
    "exits": WAIT_FOR_GO + "exit 3",
    "kills itself": WAIT_FOR_GO + "kill -KILL $$",
    "exits on TERM": "wait",
    "ignores TERM": "trap '' TERM\nwhile :; do wait; done",
    "stops itself": "kill -STOP $$; wait",
    "forks on TERM": """
trap 'setsid sleep 1000 & sleep 1000 & (setsid sleep 1000 &) ; exit 5' TERM
while :; do sleep 1000 & wait $!; done
""",
}
GRACES_S = {"ignores TERM": 0.3, "forks on TERM": 2.0}
"""Of those that use theirs up, alone or by a child in the group; the others end before it does."""
CELLS = [
    ("exits", "natural", 3),
    ("kills itself", "natural", -9),
    ("exits on TERM", "deadline", -15),
    ("ignores TERM", "deadline", -9),
    ("exits on TERM", "close", -15),
    ("ignores TERM", "close", -9),
    ("stops itself", "close", -15),
    ("forks on TERM", "close", 5),
]


@pytest.mark.parametrize("drain", ["seed", "all"])
@pytest.mark.parametrize(("harness", "ending", "return_code"), CELLS)
def test_who_dies_and_who_lives(supervised, kit, harness, ending, return_code, drain):
    timeout_s = 4 if ending == "deadline" else 60
    script = CHILDREN + HARNESSES[harness]
    supervisor = supervised.run(script, timeout_s=timeout_s, grace_s=GRACES_S.get(harness, 10.0), drain=drain)
    pids = {name: supervised.pid(name) for name in EVERYBODY}
    for name in ADOPTED:
        kit.adopted(pids[name], supervisor.pid)
    if ending == "natural":
        (supervised.work / "go").touch()
    elif ending == "close":
        supervised.stop()
    receipt = supervised.receipt()

    assert receipt == {
        "cleanup_confirmed": True,
        "return_code": return_code,
        "error": None,
        "timed_out": ending == "deadline",
    }
    survivors = set()
    if drain == "seed":
        survivors = ADOPTED | UNDERWAY if ending == "natural" else ADOPTED
    assert supervised.living() == {pids[name] for name in survivors}
    assert supervised.reported("killed") >= {pids[name] for name in EVERYBODY - survivors}
    if drain == "seed" and ending != "natural":
        assert supervised.reported("preserved") == {pids[name] for name in ADOPTED}
    named = supervised.reported("preserved") | supervised.reported("unfinished")
    assert named == {pids[name] for name in survivors}


@pytest.mark.parametrize("ending", ["close", "deadline"])
def test_who_still_writes_at_the_end_has_written_its_last_before_the_receipt(supervised, lifeline, ending):
    """The deadline ends harness and tools, not only the wait for them: nothing grows after the receipt."""
    writer = "exec 9> lifeline; while :; do echo x >> log; done"
    tools = f"for i in 1 2 3; do setsid sh -c '{writer}' & done"
    timeout_s = 2 if ending == "deadline" else 60
    supervised.run(f"{tools}; trap '' TERM; {writer}", grace_s=0.1, timeout_s=timeout_s)
    supervised.wait_file("log")
    if ending == "close":
        assert lifeline.is_held()
        supervised.stop()
    receipt = supervised.receipt()
    size = (supervised.work / "log").stat().st_size
    assert receipt["cleanup_confirmed"] and receipt["timed_out"] is (ending == "deadline")
    assert not lifeline.is_held()
    assert (supervised.work / "log").stat().st_size == size


RELAY = """
import os, time
until = time.monotonic() + 120  # Whoever escapes a test that fails does not run for ever.
os.setsid()
os.set_inheritable(os.open("lifeline", os.O_WRONLY), True)
open("runs", "w").close()
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
"""


def test_a_relay_that_forks_and_exits_all_the_time_does_not_slip_between_two_looks(supervised, lifeline):
    (supervised.work / "relay.py").write_text(RELAY)
    # A service keeps the supervisor from ever being without children, so that only looks can tell.
    service = "(setsid sh -c 'echo $$ > s; mv s service.pid; exec sleep 1000' > /dev/null 2>&1 &)\n"
    supervised.run(service + f"{supervised.python} -I -S relay.py & sleep 1000", grace_s=0.05)
    supervised.wait_file("runs")
    pid = supervised.pid("service")
    assert lifeline.is_held()
    supervised.stop()
    assert supervised.receipt()["cleanup_confirmed"]
    assert not lifeline.is_held()
    assert supervised.living() == {pid}
    assert pid in supervised.reported("preserved")


def test_children_known_before_a_natural_exit_are_services_and_the_others_unfinished(supervised, kit):
    early = "(setsid sh -c 'echo $$ > $WORK/e; mv $WORK/e $WORK/early.pid; exec sleep 1000' &)\n"
    late = "setsid sh -c 'echo $$ > $WORK/l; mv $WORK/l $WORK/late.pid; exec sleep 1000' &\n"
    supervisor = supervised.run(early + WAIT_FOR_GO + late + 'while [ ! -e "$WORK/late.pid" ]; do :; done')
    pid = supervised.pid("early")
    kit.adopted(pid, supervisor.pid)
    # Twice the housekeeping interval: its snapshot has then seen the early one.
    before = wake_ups(supervisor.pid)
    kit.eventually(lambda: wake_ups(supervisor.pid) >= before + 2, "the supervisor has looked around twice")
    (supervised.work / "go").touch()
    assert supervised.receipt()["cleanup_confirmed"]
    assert supervised.reported("preserved") == {pid}
    assert supervised.reported("unfinished") == {supervised.pid("late")}


def wake_ups(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))


def test_orphans_are_reaped_while_the_harness_runs(supervised, kit):
    script = 'for i in $(seq 60); do (setsid true &); done; : > "$WORK/spawned"\n' + WAIT_FOR_GO
    supervisor = supervised.run(script)
    supervised.wait_file("spawned")

    def zombies():
        stats = [kit.stat_of(name) for name in os.listdir("/proc") if name.isdigit()]
        return [stat for stat in stats if stat and stat[1] == supervisor.pid and stat[0] == "Z"]

    kit.eventually(lambda: not zombies(), "no zombie is left standing")
    assert supervisor.poll() is None
    (supervised.work / "go").touch()
    assert supervised.receipt() == {
        "cleanup_confirmed": True, "return_code": 0, "error": None, "timed_out": False}  # fmt: skip


def test_a_zombie_held_by_a_parent_outside_the_group_does_not_block(supervised, kit):
    holder = """
import os, sys, time
group = os.getpgrp()
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), 9)          # a zombie in the harness's group, never waited for
os.setpgid(0, 0)
open(os.environ["WORK"] + "/held.pid", "w").write(str(pid))
time.sleep(1000)
"""
    (supervised.work / "holder.py").write_text(holder)
    supervised.run(f"{supervised.python} -I -S holder.py &\n" + WAIT_FOR_GO)
    pid = supervised.pid("held")
    kit.eventually(lambda: kit.stat_of(pid)[0] == "Z", "the child is a zombie")
    (supervised.work / "go").touch()
    assert supervised.receipt()["cleanup_confirmed"]
    assert kit.stat_of(pid)[0] == "Z"  # It still stands, and is dead.


def test_exit_codes_that_look_like_time_outs_are_not_time_outs(make_supervised):
    for code in (124, 137, 143):
        one = make_supervised()
        one.run(f"exit {code}")
        receipt = one.receipt()
        assert (receipt["return_code"], receipt["timed_out"]) == (code, False)


def test_a_stop_at_any_moment_of_the_launch_gives_a_receipt_or_no_launch(make_supervised, kit):
    launched = 0
    for step in range(15):
        one = make_supervised()
        one.command(["sh", "-c", "echo $$ > $WORK/t; sleep 1000"])
        process = one.launch()
        # From before the claim until after the harness runs, in steps of a few instructions of ours.
        if step % 5:
            kit.eventually((one.dir / ("launch.claim", "supervisor.pid")[step % 2]).exists, "claimed")
        for _ in range(step * 40):
            process.poll()
        one.stop()
        code = one.wait()
        assert one.living() == set()
        if (one.dir / "cleanup.json").exists():
            receipt = one.receipt()
            assert receipt["cleanup_confirmed"] and not receipt["timed_out"]
            if receipt["error"] is None:
                assert receipt["return_code"] == -15  # The SIGTERM was not lost on a half-made harness.
            else:
                assert receipt["return_code"] is None and "before the launch" in receipt["error"]
            launched += 1
        else:
            assert code == 125 and not (one.dir / "launch.claim").exists()
    assert launched


def test_a_close_that_races_the_natural_exit_gives_one_clean_receipt(make_supervised, kit):
    for step in range(12):
        one = make_supervised()
        process = one.run('while [ ! -e "$WORK/go" ]; do :; done; exit 7')
        kit.eventually((one.dir / "supervisor.pid").exists, "launched")
        (one.work / "go").touch()
        for _ in range(step * 30):
            process.poll()
        one.stop()
        receipt = one.receipt()
        assert receipt["cleanup_confirmed"] and receipt["error"] is None and not receipt["timed_out"]
        assert receipt["return_code"] in (7, -15)
        assert one.living() == set()
