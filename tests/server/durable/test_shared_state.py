"""Sessions at once, each in a sandbox of its own: none gets what is another's, and each has its HOME."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from inspan_core.sandbox import Mount, SandboxSpec
from inspan_runtime.providers.bubblewrap import BubblewrapProvider

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(240)]
MANY = 32
TELLS = 'cd; echo "kept of {n}" > note; cd - >/dev/null; echo {n} "$PWD" "$HOME" >> /counts/told-{n}; env'


@pytest.fixture
def script():
    def says(n):
        step = {"tool_calls": [{"name": "shell", "arguments": {"command": TELLS.format(n=n)}}]}
        return [step, {"content": f"the answer of {n}"}]

    return {f"r{n}": says(n) for n in range(MANY)}


def provider_of(world):
    return BubblewrapProvider({"runtime_dir": str(world.folder / "run")})


async def make(world, n):
    counts = Mount(source=str(world.folder / "counts"), target="/counts", read_only=False)
    spec = SandboxSpec(workdir=f"/w{n}", mounts=(counts,), env={"OF_THE_TASK": f"task {n}"}, ttl_s=600.0)
    return dict((await provider_of(world).create(spec, key=f"theirs-{n}")).descriptor)


async def verify(world, descriptor):
    """As a verifier does, with the sandbox's own environment."""
    sandbox = await provider_of(world).connect(descriptor)
    looked = await sandbox.exec(["sh", "-c", 'echo "$HOME"; cat ~/note'], timeout_s=30)
    return looked.stdout.decode().splitlines()


def play(world, n):
    descriptor = anyio.run(make, world, n)
    connection = {"kind": "direct", "provider_config_ref": "box", "descriptor": descriptor}
    access = {"connection": connection, "workdir": f"/w{n}"}
    return descriptor, *world.episode(f"s{n}", f"r{n}", sandbox_access=access)


@pytest.mark.parametrize("count", [6, pytest.param(MANY, marks=pytest.mark.full)])
def test_no_setting_of_a_session_reaches_another(worlds, count):
    world = worlds()
    with ThreadPoolExecutor(8) as pool:
        played = list(pool.map(lambda n: play(world, n), range(count)))
    for n, (descriptor, seeded, activated, closed) in enumerate(played):
        assert [answer.status_code for answer in (seeded, activated, closed)] == [200] * 3, activated.text
        assert f"the answer of {n}" in activated.text and f"OF_THE_TASK=task {n}" in activated.text
        number, workdir, home = (world.folder / "counts" / f"told-{n}").read_text().split()
        assert (number, workdir) == (str(n), f"/w{n}")
        assert anyio.run(verify, world, descriptor) == [home, f"kept of {n}"]
        assert len(world.model.capture.calls(f"r{n}")) == 2
