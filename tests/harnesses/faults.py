"""The faults: what the model answers, and what happens meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from attrs import frozen

from inspan_server.testing.replies import USAGE, call, error, said, shell

HARNESSES = ("pi", "codex", "hermes")
OVERFLOW = {"error": {"message": "This model's maximum context length is 65536 tokens.", "code": 400}}
PORT = 8765
HARD_PROMPT = (
    "\"quotes\" 'and' $HOME `x` \\ \n\t\u2028 \U0001f600 \u0645 pkill -f pi; zanzibar " + "x" * 200_000
)


def raw(arguments):
    """A call of the shell with these very characters as its arguments."""
    return {"tool_calls": [{"name": "shell", "arguments": arguments}], "usage": USAGE}


MALFORMED = ('{"command": "echo a > bad', "[]", "null", "x" * 100_000)
FLOOD = "head -c 5000000 /dev/zero | tr '\\0' x; printf '\\377\\376 \\303'; echo; printf '\\360\\237\\230'"


CONNECT = f"import socket; socket.create_connection(('127.0.0.1', {PORT}), 1)"
SERVES = f'for n in $(seq 300); do python3 -c "{CONNECT}" 2>/dev/null && break; sleep 0.1; done'
"""On a busy machine a run may be over before the service listens, and then nobody can tell its port."""

REMOVE = "for each in b; do rm -f $each; done; env rm -f c"


def service(harness):
    """How each harness starts what shall live on."""
    serve = f"python3 -m http.server {PORT} --bind 127.0.0.1"
    if harness == "hermes":
        return call("terminal", command=f"exec {serve} >/dev/null 2>&1", background=True)
    return shell(f"setsid {serve} >/dev/null 2>&1 </dev/null & echo started")


async def close_during_tool(session):
    await session.until("sleep 4711.5")
    await session.close()


async def kill_during_tool(session):
    """Kill the process that calls the model."""
    await session.until("sleep 4711.5")
    session.notes["pid"] = session.looks[-1]["callers"][0]["pid"]
    await session.shell(f"kill -9 {session.notes['pid']}")


def statuses(*wanted):
    """The tools' records tell how each ended."""

    def look(seen, harness):
        assert [record["status"] for record in seen.records_of("tool_call")] == list(wanted)

    return look


def were_not_run(seen, harness):
    """Malformed arguments are told as they came, and where the tool was called it has failed."""
    statuses(*["failed"] * (2 if harness == "hermes" else 4), "completed")(seen, harness)
    calls = [item["arguments"] for item in seen.answer["output"] if item["type"] == "function_call"]
    assert calls[:4] == list(MALFORMED)


def was_cut(seen, harness):
    """The output that the model saw is bounded, and is text."""
    (output,) = [item["output"] for item in seen.answer["output"] if item["type"] == "function_call_output"]
    assert len(output) < 200_000
    assert output.encode()


def was_passed_on(status, message):
    """What the model server said reaches the client unchanged, as far as the program keeps it."""

    def look(seen, harness):
        detail = seen.answer["detail"]
        assert detail["model_status"] == status and message in str(detail["model_body"])

    return look


def was_cut_off(seen, harness):
    """The command is gone, its call is told as cancelled, and so is the sandbox's part where we closed."""
    statuses("cancelled")(seen, harness)
    assert not [each for each in seen.after["processes"] if "sleep 4711.5" in each["line"]]
    outcome = "timeout" if seen.receipt.timed_out else "cancelled"
    assert [record["outcome"] for record in seen.records_of("sandbox")] == [outcome]


def was_killed(seen, harness):
    """Nobody of ours sent that signal: the command is told, not killed."""
    statuses("incomplete")(seen, harness)
    assert seen.receipt.return_code == -9 and not seen.receipt.timed_out
    assert seen.notes["pid"] not in {each["pid"] for each in seen.after["processes"]}
    assert seen.processes.killed == ()


def serves_on(seen, harness):
    """It answers after the close, and the report names its port."""
    assert seen.notes["service"] == "200\n"
    lives = [*seen.processes.preserved, *seen.processes.unfinished]
    assert [each.ports for each in lives if each.ports] == [(PORT,)]


def was_in_no_command_line(seen, harness):
    lines = [each["line"] for look in seen.looks for each in look["processes"]]
    assert lines and not [line for line in lines if "zanzibar" in line]


@frozen(kw_only=True)
class Fault:
    """One fault.

    Attributes:
        replies: Of the model, for a harness.
        meanwhile: Done while the harness runs.
        has_time_limit: Whether the request sets the run's deadline.
        files: What the tools must have written: a command of the sandbox, and its output.
        look: Checks what only this fault has to show.
    """

    name: str
    replies: Callable[[str], list]
    meanwhile: Callable[..., Awaitable[None]] | None = None
    has_time_limit: bool = False
    prompt: str = "Do the thing."
    files: tuple[str, str] | None = None
    look: Callable[..., None] = lambda seen, harness: None

    def check(self, seen, harness):
        """What only this fault has to show."""
        if self.files is not None:
            assert seen.notes["files"] == self.files[1]
        self.look(seen, harness)


TIME_LIMIT_S = {"pi": "15", "codex": "10", "hermes": "60"}
"""Longer than each takes to begin, on a busy machine too."""

SLEEP = "echo begun > note; sleep 4711.5"
LATE = {"content": "late", "usage": USAGE, "delay_s": 100.0}
KEPT = "echo x > ~/kept; git config --global a.b c; printf hi > out"


def _same(*replies):
    return lambda harness: list(replies)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            name="tool success",
            replies=_same(shell(KEPT), said()),
            files=("cat out ~/kept; git config --global a.b", "hix\nc\n"),
            look=statuses("completed"),
        ),
        Fault(
            name="tool failure, recovery",
            replies=_same(shell("cat missing; exit 3"), shell("printf fixed > out"), said()),
            files=("cat out", "fixed"),
            look=statuses("failed", "completed"),
        ),
        Fault(
            name="two tools, one state",
            replies=_same(shell("echo 41 > n"), shell("echo $(( $(cat n) + 1 )) | tee m"), said()),
            files=("cat m", "42\n"),
            look=statuses("completed", "completed"),
        ),
        Fault(name="429 twice", replies=_same(error(429), error(429), said())),
        Fault(name="500 once", replies=_same(error(500), said())),
        Fault(
            name="context overflow",
            replies=_same(*[error(400, OVERFLOW)] * 9),
            look=was_passed_on(400, "maximum context length is 65536"),
        ),
        Fault(
            name="context overflow after work",
            replies=_same(shell("echo a > out"), *[error(400, OVERFLOW)] * 9),
            files=("cat out", "a\n"),
        ),
        Fault(name="401", replies=_same(*[error(401)] * 9), look=was_passed_on(401, "scripted error 401")),
        Fault(name="silent model", replies=_same(LATE, LATE), has_time_limit=True),
        Fault(name="usage omitted", replies=_same(said(usage=None))),
        Fault(name="dropped stream", replies=_same({**said("half of it"), "drop_after_chunks": 3}, said())),
        Fault(
            name="stream dropped for ever",
            replies=_same(*[{**said("half of it"), "drop_after_chunks": 3}] * 30),
        ),
        Fault(
            name="deadline during a tool",
            replies=_same(shell(SLEEP)),
            has_time_limit=True,
            files=("cat note", "begun\n"),
            look=was_cut_off,
        ),
        Fault(
            name="close during a tool",
            replies=_same(shell(SLEEP)),
            meanwhile=close_during_tool,
            files=("cat note", "begun\n"),
            look=was_cut_off,
        ),
        Fault(
            name="harness killed",
            replies=_same(shell(SLEEP)),
            meanwhile=kill_during_tool,
            files=("cat note", "begun\n"),
            look=was_killed,
        ),
        Fault(
            name="background service",
            replies=lambda harness: [service(harness), shell(SERVES), said()],
            look=serves_on,
        ),
        Fault(
            name="forced removal",
            replies=_same(shell("touch a b c kept; rm -rf a"), shell(REMOVE), said()),
            files=("ls", "kept\n"),
            look=statuses("completed", "completed"),
        ),
        Fault(
            name="two calls in one answer",
            replies=_same(
                {
                    **shell("echo 1 > a"),
                    "tool_calls": [*shell("echo 1 > a")["tool_calls"], *shell("echo 2 > b")["tool_calls"]],
                },
                said(),
            ),
            files=("cat a b", "1\n2\n"),
            look=statuses("completed", "completed"),
        ),
        Fault(
            name="malformed arguments",
            replies=_same(*map(raw, MALFORMED), shell("echo well > out"), said()),
            files=("ls; cat out", "out\nwell\n"),
            look=were_not_run,
        ),
        Fault(name="huge and broken output", replies=_same(shell(FLOOD), said()), look=was_cut),
        Fault(
            name="hard prompt",
            replies=lambda harness: [
                shell("pkill -f zanzi[b]ar; echo ok > out"),
                shell(f"pkill -f {harness}"),
                said(),
            ],
            prompt=HARD_PROMPT,
            files=("cat out", "ok\n"),
            look=was_in_no_command_line,
        ),
    )
}


async def run_fault(world, harness, fault):
    """A whole session with a fault in it, as it was seen."""
    request = {"input": fault.prompt}
    if fault.has_time_limit:
        request["metadata"] = {"agent_timeout_sec": TIME_LIMIT_S[harness]}
    async with world.session(harness, fault.replies(harness)) as session:
        await session.seed()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.activate, request)
            if fault.meanwhile is not None:
                await fault.meanwhile(session)
        if session.closed is None:
            await session.close()
        session.after = await session.look()
        if fault.files is not None:
            session.notes["files"] = await session.shell(fault.files[0])
        if fault.name == "background service":
            ask = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{PORT}/').status)"
            session.notes["service"] = await session.shell(f'python3 -c "{ask}"')
        return await session.seen()
