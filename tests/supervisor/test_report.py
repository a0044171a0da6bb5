"""`processes.json`: who was killed, preserved and left unfinished, where they listened, and why."""

import json
import os
import socket
import subprocess
import uuid

import pytest

from inspan_supervisor import supervisor_source

# A listener of its own, on a port that it writes down, with a child that holds the socket too.
LISTEN = """
import os, socket, sys, time
name, family = sys.argv[1], socket.AF_INET6 if "6" in sys.argv[2:] else socket.AF_INET
listener = socket.create_server(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family)
if "child" in sys.argv[2:] and os.fork() == 0:
    name = name + "_child"
with open(name + ".new", "w") as file:
    print(os.getpid(), listener.getsockname()[1], file=file)
os.rename(name + ".new", name + ".listens")
time.sleep(1000)
"""
IN_ANOTHER_NETWORK = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--net"]


@pytest.fixture
def listening(supervised):
    (supervised.work / "listen.py").write_text(LISTEN)

    def read(name):
        supervised.wait_file(f"{name}.listens")
        return tuple(map(int, (supervised.work / f"{name}.listens").read_text().split()))

    return read


def start(supervised, name, *options, how="setsid"):
    return f"{how} {supervised.python} -I -S listen.py {name} {' '.join(options)}"


def entries(supervised):
    """The entries by pid, each with the list that it stands in."""
    report = supervised.report()
    report.pop("dropped")
    return {entry["pid"]: {**entry, "list": kind} for kind, found in report.items() for entry in found}


PORTS_BUDGET = b"PORTS_BUDGET_S, FD_LIMIT = "


def with_time_for_ports(supervised, budget_s):
    """Processor time goes by fast on a crowded host, where each look at its processes takes long."""
    source = supervisor_source()
    assert source.count(PORTS_BUDGET + b"0.1") == 1
    source = source.replace(PORTS_BUDGET + b"0.1", PORTS_BUDGET + budget_s)
    (supervised.dir / "process_supervisor.py").write_bytes(source)


def test_each_listed_process_is_listed_with_the_ports_where_it_listens(supervised, listening, kit):
    with_time_for_ports(supervised, b"10")
    service = f"({start(supervised, 'service', 'child')} &)\n"
    tool = f"{start(supervised, 'tool')} &\n"
    member = f"{start(supervised, 'member', how='')} &\n"
    supervisor = supervised.run(
        service + tool + member + "setsid sleep 1000 & echo $! > n; mv n none.pid; wait"
    )
    pids = {name: listening(name) for name in ("service", "service_child", "tool", "member")}
    kit.adopted(pids["service"][0], supervisor.pid)
    supervised.stop()
    assert supervised.receipt()["cleanup_confirmed"]
    found = entries(supervised)
    told = {name: (found[pid]["list"], found[pid]["ports"]) for name, (pid, _) in pids.items()}
    assert told == {
        "service": ("preserved", [pids["service"][1]]),
        "service_child": ("preserved", [pids["service"][1]]),
        "tool": ("killed", [pids["tool"][1]]),
        "member": ("killed", [pids["member"][1]]),
    }
    assert found[supervised.pid("none")]["ports"] == []


def test_ports_are_told_at_a_natural_exit_too_and_of_ipv6(supervised, listening):
    with_time_for_ports(supervised, b"10")
    option = "6" if socket.has_ipv6 and os.path.exists("/proc/net/tcp6") else ""
    wait = "while [ ! -e tool.listens ] || [ ! -e member.listens ]; do :; done; exit 0"
    member = start(supervised, "member", how="")
    supervised.run(f"{start(supervised, 'tool', option)} & {member} & {wait}")
    assert supervised.receipt()["cleanup_confirmed"]
    found = entries(supervised)
    for name, kind in (("tool", "unfinished"), ("member", "killed")):
        pid, port = listening(name)
        assert (found[pid]["list"], found[pid]["ports"]) == (kind, [port]), name


def test_ports_are_those_of_the_processs_own_network(supervised, listening, kit):
    with_time_for_ports(supervised, b"10")
    inside = " ".join([*IN_ANOTHER_NETWORK, "sh", "-c", '"ip link set lo up || true; exec setsid $SERVE"'])
    supervised.command(
        ["sh", "-c", f"({inside} &)\nwhile [ ! -e service.listens ]; do :; done; exit 0"],
        env={"SERVE": f"{supervised.python} -I -S listen.py service"},
    )
    supervised.launch()
    assert supervised.receipt()["cleanup_confirmed"]
    pid, port = listening("service")
    assert entries(supervised)[pid]["ports"] == [port]


def test_ports_that_cannot_be_read_are_unknown_and_cost_nothing(supervised, listening, kit):
    """As for a process of another user: the kernel refuses /proc/PID/fd. Here there is no such name."""
    source = supervisor_source().replace(b"/fd", b"/no-such-fd")
    assert source.count(b"/no-such-fd") == 1
    (supervised.dir / "process_supervisor.py").write_bytes(source)
    supervised.run(f"{start(supervised, 'tool')} & wait")
    pid, _ = listening("tool")
    supervised.stop()
    assert supervised.receipt()["cleanup_confirmed"]
    assert entries(supervised)[pid]["ports"] is None


def test_looking_for_ports_ends_when_its_time_is_spent(supervised, listening):
    with_time_for_ports(supervised, b"0")
    supervised.run(f"{start(supervised, 'tool')} & wait")
    pid, _ = listening("tool")
    supervised.stop()
    assert supervised.receipt()["cleanup_confirmed"]
    assert entries(supervised)[pid]["ports"] is None


NAMED = 'echo $$ > "$WORK/$0.new"; mv "$WORK/$0.new" "$WORK/$0.pid"; exec sleep 1000'
FAMILY = f"sh -c '{NAMED}' child &\n{NAMED.replace('exec sleep 1000', 'wait')}\n"
"""A process with a child that stays below it."""


def test_who_stays_below_a_service_is_told_apart_and_spared(supervised, kit):
    """The default: what a service holds, be it its worker or what a tool gave it to do, is left alone."""
    (supervised.work / "family.sh").write_text(FAMILY)
    supervisor = supervised.run("(setsid sh -c '. ./family.sh' service &)\nwait; exec sleep 1000")
    service, child = supervised.pid("service"), supervised.pid("child")
    kit.adopted(service, supervisor.pid)
    supervised.stop()
    assert supervised.receipt()["cleanup_confirmed"]
    found = entries(supervised)
    assert found[child]["list"] == found[service]["list"] == "preserved"
    assert found[child]["reason"] == f"below {service}"
    assert supervised.living() >= {service, child}


@pytest.mark.parametrize("ending", ["close", "natural"])
def test_with_drain_all_services_and_whoever_is_below_them_die(supervised, kit, ending):
    (supervised.work / "family.sh").write_text(FAMILY)
    rest = "while [ ! -e go ]; do sleep 0.01; done"
    supervisor = supervised.run(f"(setsid sh -c '. ./family.sh' service &)\n{rest}", drain="all")
    service, child = supervised.pid("service"), supervised.pid("child")
    kit.adopted(service, supervisor.pid)
    (supervised.work / "go").touch() if ending == "natural" else supervised.stop()
    assert supervised.receipt()["cleanup_confirmed"]
    assert supervised.living() == set()
    assert supervised.reported("killed") >= {service, child}


def test_when_and_from_whom_a_service_was_adopted_is_told(supervised, kit):
    """Three that the default spares alike: an old service, one of a tool that still runs, one of just now."""
    tool = f"(sh -c '{NAMED}' from_a_tool &)\nwait; exec sleep 1000"
    (supervised.work / "tool.sh").write_text(tool)
    script = f"""
(setsid sh -c '{NAMED}' old &)
while [ ! -e go ]; do sleep 0.01; done
setsid sh ./tool.sh &
(setsid sh -c '{NAMED}' late &)
wait
"""
    supervisor = supervised.run(script)
    old = supervised.pid("old")
    kit.adopted(old, supervisor.pid)
    before = wake_ups(supervisor.pid)
    # Housekeeping looks once a second: after two looks the old one was seen more than a second ago.
    kit.eventually(lambda: wake_ups(supervisor.pid) >= before + 4, "the supervisor has looked around")
    (supervised.work / "go").touch()
    from_a_tool, late = supervised.pid("from_a_tool"), supervised.pid("late")
    kit.adopted(from_a_tool, supervisor.pid)
    kit.adopted(late, supervisor.pid)
    supervised.stop()
    assert supervised.receipt()["cleanup_confirmed"]
    found = entries(supervised)
    assert {pid: found[pid]["reason"] for pid in (old, from_a_tool, late)} == {
        old: "adopted before the end",
        from_a_tool: "adopted from a tool that was still running",
        late: "adopted just before the end",
    }
    assert supervised.living() == {old, from_a_tool, late}


def test_one_that_a_dead_tool_has_left_is_not_told_as_of_a_running_one(supervised, kit):
    """Also where the harness does not wait for its tools, so that their zombies stay below it."""
    tool = f"(sh -c '{NAMED}' left &)\necho $$ > n; mv n tool.pid"
    (supervised.work / "tool.sh").write_text(tool)
    supervisor = supervised.run("setsid sh ./tool.sh &\nexec sleep 1000")
    left = supervised.pid("left")
    kit.adopted(left, supervisor.pid)
    kit.eventually(lambda: kit.stat_of(supervised.pid("tool"))[0] == "Z", "the tool is a zombie")
    supervised.stop()
    assert supervised.receipt()["cleanup_confirmed"]
    assert entries(supervised)[left]["reason"] in ("adopted before the end", "adopted just before the end")


def wake_ups(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))


@pytest.mark.parametrize("drain", ["seed", "all"])
def test_who_carries_the_runs_mark_elsewhere_is_found_by_it_and_nobody_else(supervised, kit, drain):
    """A daemon that was there before starts what a tool asks for, with the tool's environment."""
    supervised.run('echo "$INSPAN_RUN" > n; mv n mark; while [ ! -e go ]; do sleep 0.01; done', drain=drain)
    supervised.wait_file("mark")
    mark = (supervised.work / "mark").read_text().strip()
    env = {"PATH": os.environ["PATH"]}
    with (
        subprocess.Popen(["sleep", "1000"], env={**env, "INSPAN_RUN": mark}) as handed,
        subprocess.Popen(["sleep", "1000"], env={**env, "INSPAN_RUN": uuid.uuid4().hex}) as of_another_run,
        subprocess.Popen(["sleep", "1000"], env={**env, "NOT_INSPAN_RUN": mark}) as stranger,
    ):
        try:
            (supervised.work / "go").touch()
            receipt = supervised.receipt()
            assert receipt["cleanup_confirmed"] and receipt["return_code"] == 0
            assert (of_another_run.poll(), stranger.poll()) == (None, None)
            if drain == "all":
                assert handed.wait(20) == -9
                [entry] = supervised.report()["killed"]
                assert (entry["pid"], entry["reason"]) == (handed.pid, "marked")
            else:
                assert handed.poll() is None
            assert mark not in (supervised.dir / "processes.json").read_text()
        finally:
            for process in (handed, of_another_run, stranger):
                process.kill()


def test_the_mark_is_new_in_each_run_and_replaces_one_from_outside(make_supervised):
    marks = set()
    for _ in range(3):
        one = make_supervised()
        one.command(["sh", "-c", 'echo "$INSPAN_RUN"'], env={"INSPAN_RUN": "outer"})
        one.launch()
        assert one.receipt()["return_code"] == 0
        marks.add(one.output().strip())
    assert len(marks) == 3 and "outer" not in marks and all(len(mark) == 32 for mark in marks)


def test_no_argument_and_no_variable_of_a_process_is_in_the_report(supervised, kit):
    script = (
        "CANARY_IN_ENV=canary-env setsid sh -c 'echo $$ > n; mv n tool.pid; sleep 1000' canary-arg & wait"
    )
    supervised.run(script)
    supervised.pid("tool")
    supervised.stop()
    assert supervised.receipt()["cleanup_confirmed"]
    text = (supervised.dir / "processes.json").read_text()
    assert "canary" not in text.lower()
    keys = {key for entry in json.loads(text)["killed"] for key in entry}
    assert keys == {"pid", "start_ticks", "parent", "group", "session", "name", "ports", "reason"}
