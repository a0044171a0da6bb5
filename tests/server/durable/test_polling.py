"""Five hundred who wait for their harness while the provider is down: by the clock, and not all at once."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest
import trio.testing

from inspan_core.errors import EvidenceMissing, SandboxTransportError
from inspan_core.sandbox import ExecResult, FileContent
from inspan_runtime import supervisor_client as client

pytestmark = pytest.mark.anyio
MANY = 500
DOWN_S = 120.0
RECEIPT = b'{"cleanup_confirmed": true, "return_code": 0, "error": null, "timed_out": false}'


@pytest.fixture
def anyio_backend():
    """Hours pass in no time: the clock jumps whenever nothing else can happen."""
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


class Flaky:
    """The receipt is there all along; the provider fails until a moment, each call after a while."""

    def __init__(self, *, down_until, call_s=0.0):
        self.down_until, self.call_s, self.asked = down_until, call_s, []

    async def answer(self, given):
        self.asked.append(anyio.current_time())
        await anyio.sleep(self.call_s)
        if anyio.current_time() < self.down_until:
            raise SandboxTransportError("the provider is down")
        return given

    async def exec(self, argv, *, timeout_s, env=None, cwd=None, stdin=b"", output_limit_bytes=0):
        return await self.answer(ExecResult(exit_code=0, stdout=b"receipt\n"))

    async def download(self, path, *, limit_bytes, tail=False, timeout_s=60.0):
        return await self.answer(FileContent(data=RECEIPT, size_bytes=len(RECEIPT)))

    async def upload(self, path, data, *, mode=0o644, timeout_s=60.0):
        await self.answer(None)


async def test_failed_polls_are_no_failed_agents_and_spread_over_time():
    provider = Flaky(down_until=anyio.current_time() + DOWN_S)
    began, receipts = anyio.current_time(), []

    async def wait(number):
        folder = f"/tmp/inspan/session-{number}"
        receipts.append(await client.await_receipt(provider, folder, timeout_s=3600.0, launch_over=True))

    async with anyio.create_task_group() as tasks:
        for number in range(MANY):
            tasks.start_soon(wait, number)
    assert [receipt.cleanup_confirmed for receipt in receipts] == [True] * MANY
    late = Counter(int((at - began) * 10) for at in provider.asked if DOWN_S / 2 < at - began < DOWN_S)
    # Each asks twice at a time, and every 2.5 to 5 s: 270 calls a second, and 27 in a tenth of one.
    assert max(late.values()) < MANY / 4, "they come in waves"
    assert len(provider.asked) < MANY * (DOWN_S / 2.5 + 12) * 2


@pytest.mark.parametrize("call_s", [0.0, 1.0, 17.0])
async def test_the_wait_ends_by_the_clock_however_long_a_poll_takes(call_s):
    provider = Flaky(down_until=float("inf"), call_s=call_s)
    began = anyio.current_time()
    with pytest.raises(EvidenceMissing, match=r"no receipt within \d+ s: the provider is down"):
        await client.await_receipt(provider, "/tmp/inspan/s", timeout_s=100.0, launch_over=True)
    # The last poll begins before the end and is two calls at most.
    assert 100.0 <= anyio.current_time() - began <= 100.0 + 2 * call_s
