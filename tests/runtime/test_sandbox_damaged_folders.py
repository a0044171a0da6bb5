"""State folders that are damaged, or not ours: they hide no other, and nothing else is removed."""

import os

import pytest

from inspan_core.sandbox import SandboxSpec
from inspan_runtime.providers import state_folder
from inspan_runtime.providers.local import LocalProvider

pytestmark = pytest.mark.anyio
DEAD = "inspan-0000000000000001"
WHOLE = '"descriptor": {}, "key": "k", "labels": {}'


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "run" / "local"
    made.mkdir(mode=0o700, parents=True)
    made.parent.chmod(0o700)
    return made


@pytest.fixture
def provider(folder):
    return LocalProvider({"runtime_dir": str(folder.parent)})


def make_spec(tmp_path):
    return SandboxSpec(workdir=str(tmp_path / "work"), ttl_s=120.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{bad",
        "[" * 100_000,
        "[]",
        '{"descriptor": 7, "key": 3, "labels": [], "created_at": "x"}',
        f'{{{WHOLE}, "created_at": NaN}}',
        f'{{{WHOLE}, "created_at": "1"}}',
        '{"descriptor": {}, "key": "k", "labels": {"a": 1}, "created_at": 1.0}',
    ],
    ids=lambda text: text[-30:],
)
async def test_damaged_words_hide_no_other_sandbox(provider, folder, tmp_path, text):
    (folder / DEAD).mkdir()
    (folder / DEAD / "meta.json").write_text(text)
    (folder / DEAD / "holders").write_bytes(b"\xff 1 \n7\n")
    sandbox = await provider.create(make_spec(tmp_path), key="k")
    held = {one.sandbox_id: one for one in await provider.held()}
    assert set(held) == {DEAD, sandbox.sandbox_id}
    assert held[DEAD].descriptor is None and held[sandbox.sandbox_id].holders == (os.getpid(),)
    await provider.remove(held[DEAD])
    assert [one.name for one in folder.iterdir()] == [sandbox.sandbox_id]
    await sandbox.stop()


@pytest.mark.parametrize("name", ["meta.json", "lock"])
async def test_fifo_in_the_place_of_a_file_holds_nobody_up(provider, folder, name):
    (folder / DEAD).mkdir()
    os.mkfifo(folder / DEAD / name)
    (held,) = await provider.held()
    assert held.sandbox_id == DEAD and held.descriptor is None
    await provider.remove(held)
    assert list(folder.iterdir()) == []


async def test_sandbox_that_lives_is_held_whatever_is_written_of_it(provider, folder, tmp_path):
    """A reaper takes what nobody holds: it must not take it for dead."""
    sandbox = await provider.create(make_spec(tmp_path), key="k")
    words = (folder / sandbox.sandbox_id / "meta.json").read_bytes()
    (folder / sandbox.sandbox_id / "meta.json").write_bytes(b"{")
    (held,) = await provider.held()
    assert held.descriptor is not None and held.holders == (os.getpid(),)
    (folder / sandbox.sandbox_id / "meta.json").write_bytes(words)
    await sandbox.stop()


async def test_what_has_another_name_is_left_alone(provider, folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"x")
    for name in (b"plain", b"new\nline", b"bad\xff", b".hidden", b"inspan-short"):
        os.mkdir(os.path.join(bytes(folder), name))
        os.utime(os.path.join(bytes(folder), name), (0, 0))
    (folder / DEAD).symlink_to(outside)
    names = set(os.listdir(folder)) - {DEAD}
    assert await provider.list({}) == [] and set(os.listdir(folder)) == names
    assert await provider.held() == ()
    assert (outside / "file").read_bytes() == b"x"


def test_claim_that_cannot_lock_leaves_nothing(folder, monkeypatch):
    def full(path, *arguments, **options):
        if str(path).endswith("lock"):
            raise OSError(28, "No space left on device")
        return opens(path, *arguments, **options)

    opens = os.open
    monkeypatch.setattr(state_folder.os, "open", full)
    with pytest.raises(OSError, match="No space"):
        state_folder.claim(folder, DEAD, {})
    assert list(folder.iterdir()) == []
