"""What becomes of the processes that a harness leaves is told by close, and chosen by the configuration."""

import socket
import sys

import pytest

from inspan_core.errors import ConfigError
from inspan_core.receipts import ProcessEntry, ProcessesReport
from inspan_core.sandbox import ExecResult
from inspan_runtime.contents import PROCESSES_TOLD, memory_gaps, process_gaps
from inspan_runtime.room import ExecHandle
from inspan_server.model.capture import Capture
from inspan_server.model.gateway import create_gateway
from inspan_server.model.script import parse_script
from inspan_server.serving import served

ACTIVATE = "/ng-rollout/r1/v1/responses"
SERVICE = """
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
with open("port.new", "w") as file:
    print(listener.getsockname()[1], os.getpid(), file=file)
os.rename("port.new", "port")
while True:
    listener.accept()[0].close()
"""


@pytest.mark.anyio
@pytest.mark.parametrize(("drain", "kind"), [("seed", ("preserved", "unfinished")), ("all", ("killed",))])
async def test_a_service_its_port_and_its_fate_are_in_the_observations(agent, bodies, tmp_path, drain, kind):
    (tmp_path / "work" / "service.py").write_text(SERVICE)
    start = (
        f"(setsid {sys.executable} -I -S service.py < /dev/null > log 2>&1 &); until [ -e port ]; do :; done"
    )
    call = {"tool_calls": [{"name": "shell", "arguments": {"command": start}}]}
    script = parse_script({"*": [call, {"content": "It runs."}]})
    async with served(create_gateway(script, Capture()), graceful_timeout_s=1) as model:
        changes = {"model_server": {"base_url": model}, "harness_options": {}, "process_drain": drain}
        async with agent(**changes) as server:
            await server.client.post("/v1/agent_sessions", json=bodies.seed())
            ran = await server.client.post(ACTIVATE, json={"input": "hi"})
            assert ran.status_code == 200, ran.text
            port, pid = map(int, (tmp_path / "work" / "port").read_text().split())
            assert accepts(port) == (drain == "seed")
            closed = await server.client.post("/v1/agent_sessions/close", json=bodies.close())
    gaps = {gap["code"]: gap["detail"] for gap in closed.json()["agent_observations"]["gaps"]}
    [told] = [gaps[f"processes_{each}"] for each in kind if f"processes_{each}" in gaps]
    assert f"(pid {pid}, ports {port}; " in told
    assert "service.py" not in told  # Its arguments stay inside.


def accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.anyio
async def test_an_unknown_drain_is_refused_by_name(agent):
    with pytest.raises(ConfigError, match="process_drain"):
        async with agent(process_drain="most"):
            pass


@pytest.mark.anyio
async def test_a_sandbox_that_ran_out_of_memory_is_told():
    handle = ExecHandle(None, ["true"], timeout_s=1)
    assert memory_gaps(None) == memory_gaps(handle) == ()
    handle.result = ExecResult(exit_code=0)
    assert memory_gaps(handle) == ()
    handle.result = ExecResult(exit_code=137, out_of_memory=True)
    assert [gap.code for gap in memory_gaps(handle)] == ["out_of_memory"]


def test_of_many_processes_the_gap_tells_some_and_counts_the_rest():
    many = tuple(ProcessEntry(pid=n + 1, name="sleep", reason="adopted") for n in range(256))
    [gap] = process_gaps(ProcessesReport(killed=many, dropped={"killed": 44}))
    assert gap.code == "processes_killed"
    assert gap.detail.startswith("300 killed: sleep (pid 1; adopted), sleep (pid 2; adopted)")
    assert gap.detail.endswith(f", and {300 - PROCESSES_TOLD} more")
    assert process_gaps(ProcessesReport()) == process_gaps(None) == ()
