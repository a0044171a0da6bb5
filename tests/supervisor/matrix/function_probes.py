"""Questions to single functions of the supervisor: moments that hardly ever come by themselves."""

from .bench import SetupFailed, require


async def inside(bench, source, script):
    """Run a script in the sandbox that has the supervisor's own functions at hand, as `names`."""
    session = await bench.session()
    await bench.sandbox.upload(f"{session.work}/supervisor.py", source)
    load = (
        "import os, subprocess, sys\nnames = {'__name__': 'supervisor'}\n"
        "exec(compile(open(sys.argv[1]).read(), sys.argv[1], 'exec'), names)\n"
    )
    argv = [bench.python, "-I", "-S", "-c", load + script, f"{session.work}/supervisor.py"]
    result = await bench.sandbox.exec(argv, timeout_s=20)
    if result.stderr:
        raise SetupFailed(result.stderr.decode(errors="replace"))
    require(result.stdout == b"true\n", f"expected true: {result}")


async def a_pid_of_somebody_else_is_not_killed(bench, source):
    """The stranger is no child of ours, and it answers: to be just killed does not look different at once."""
    script = """
shell = subprocess.Popen(["sh", "-c", "exec 3<&0; cat <&3 & echo $!; wait"], bufsize=1, text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
process = names["look_up"](int(shell.stdout.readline()))
process.identity = (process.pid, process.identity[1] - 1)
names["kill"](process)
shell.stdin.write("there?\\n")
shell.stdin.flush()
print(str(shell.stdout.readline() == "there?\\n").lower())
"""
    await inside(bench, source, script)


async def a_spared_pid_of_somebody_else_is_not_spared(bench, source):
    """The service that was recorded is dead, and a new child of ours has got its pid."""
    script = """
import signal
pid = os.fork() or signal.pause()
run = names["Run"]("/nowhere", {"drain": "seed"})
run.leader = run.group = 2**22
run.drains = True
run.spared = {(pid, names["look_up"](pid).identity[1] - 1)}
run.strike(names["look"]())
signal.alarm(5)
os.waitpid(pid, 0)
print("true")
"""
    await inside(bench, source, script)


async def a_chase_signals_only_its_own_children(bench, source):
    """Right before each signal the pid is that of a child whom nobody has reaped: it is nobody else's."""
    script = """
import signal
run = names["Run"]("/nowhere", {"drain": "seed"})
run.drains, run.spared, run.leader = True, set(), 2**22
children = [os.fork() or signal.pause() for _ in range(3)]
os.kill(children[0], signal.SIGKILL)
os.waitid(os.P_PID, children[0], os.WEXITED | os.WNOWAIT)
kill, strangers = os.kill, []
def kill_own(pid, number):
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        strangers.append(pid)
        return
    kill(pid, number)
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        pass
os.kill = kill_own
run.swat()
left = [pid for pid in children if names["look_up"](pid)]
print(str(strangers == left == []).lower())
"""
    await inside(bench, source, script)


async def a_death_in_a_tracers_hands_is_no_proof(bench, source):
    """No child becomes waitable then, and yet its children become ours while we look."""
    script = """
import signal
MAY_BE_TRACED = "import ctypes, signal; ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)"
SEIZE = "import ctypes, signal, sys; ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0) and sys.exit(1)"
def start(first, *arguments):
    code = first + "; print('up', flush=True); signal.pause()"
    argv = [sys.executable, "-I", "-S", "-c", code, *arguments]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE)
    if child.stdout.readline() != b"up\\n":
        sys.exit("it is not traced")
    return child
runner = start(MAY_BE_TRACED)
tracer = start(SEIZE, str(runner.pid))
run = names["Run"]("/nowhere", {"drain": "seed"})
look, look_up = names["look"], names["look_up"]
run.drains, run.leader, run.spared = True, 2**22, {look_up(tracer.pid).identity}
late = []
def look_while_it_hands_over():
    if late:
        return look()
    runner.kill()
    while look_up(runner.pid).lives:
        pass
    table = look()
    late.append(os.fork() or signal.pause())
    return table
names["look"] = look_while_it_hands_over
is_proven = run.drain(names["time"].monotonic() + 15)
print(str(is_proven and look_up(late[0]) is None).lower())
for pid in (tracer.pid, *late):
    names["attempt"](ProcessLookupError, os.kill, pid, 9)
"""
    await inside(bench, source, script)
