"""Sandbox checks can fail: each of these providers has one defect, and the named check finds it."""

import itertools
import os
import secrets

import anyio
import anyio.lowlevel
import pytest
from attrs import evolve

from inspan_core.errors import SandboxConnectError, SandboxError, SandboxGone
from inspan_core.sandbox import ExecResult, FileContent, SandboxSpec
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.testing import sandbox_checks
from inspan_runtime.testing.sandbox_checks import CheckFailed

pytestmark = pytest.mark.anyio
CHECKS = {check.__name__: check for check in sandbox_checks.SANDBOX_CHECKS}


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Wrapped:
    """A sandbox that hands everything on; defects change one thing."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Provider:
    """A provider of one kind of wrapped sandboxes."""

    name = "local"
    wrapped = Wrapped

    def __init__(self, inner):
        self.inner = inner

    async def create(self, spec, *, key, timeout_s=60.0):
        return self.wrapped(await self.inner.create(spec, key=key, timeout_s=timeout_s))

    async def connect(self, descriptor, *, timeout_s=30.0):
        return self.wrapped(await self.inner.connect(descriptor, timeout_s=timeout_s))

    async def stop(self, key, *, timeout_s=30.0):
        await self.inner.stop(key, timeout_s=timeout_s)

    async def list(self, labels):
        return await self.inner.list(labels)

    async def aclose(self):
        await self.inner.aclose()


def changed_result(**change):
    class Changed(Wrapped):
        async def exec(self, argv, **options):
            result = await self.inner.exec(argv, **options)
            return evolve(result, **{name: make(result) for name, make in change.items()})

    return Changed


def changed_call(**change):
    class Changed(Wrapped):
        async def exec(self, argv, **options):
            made = {name: make(options.get(name)) for name, make in change.items()}
            return await self.inner.exec(argv, **{**options, **made})

    return Changed


class ThroughShell(Wrapped):
    async def exec(self, argv, **options):
        return await self.inner.exec(["sh", "-c", " ".join(argv)], **options)


class EscapesItsGroup(Wrapped):
    """What is killed is not what was started."""

    async def exec(self, argv, **options):
        return await self.inner.exec(["setsid", "-w", *argv], **options)


class WaitsForOutput(Wrapped):
    """Ends when the output does, as `subprocess.run` with pipes."""

    async def exec(self, argv, **options):
        script = 'exec 3>&1; { "$@" 3>&-; echo $? >"$0.rc"; } | cat >&3; exit $(cat "$0.rc")'
        mark = f"/tmp/inspan-broken-{secrets.token_hex(4)}"
        try:
            return await self.inner.exec(["sh", "-c", script, mark, *argv], **options)
        finally:
            if os.path.exists(f"{mark}.rc"):
                os.unlink(f"{mark}.rc")


class FollowsLinks(Wrapped):
    async def download(self, path, **options):
        return await self.inner.download(os.path.realpath(path), **options)


class WritesThroughLinks(Wrapped):
    async def upload(self, path, data, **options):
        await self.inner.upload(os.path.realpath(path), data, **options)


class WritesInPlace(Wrapped):
    async def upload(self, path, data, *, mode=0o644, timeout_s=60.0):
        await self.inner.exec(["sh", "-c", 'cat >"$1"', "sh", path], timeout_s=timeout_s, stdin=data)


class ForgetsTheMode(Wrapped):
    async def upload(self, path, data, *, mode=0o644, timeout_s=60.0):
        await self.inner.upload(path, data, timeout_s=timeout_s)


class ForgetsTheLimit(Wrapped):
    async def download(self, path, *, limit_bytes, tail=False, timeout_s=60.0):
        return await self.inner.download(path, limit_bytes=2**21, tail=tail, timeout_s=timeout_s)


class TextOnly(Wrapped):
    async def download(self, path, **options):
        found = await self.inner.download(path, **options)
        return FileContent(data=found.data.decode("utf-8", "replace").encode(), size_bytes=found.size_bytes)


class EmptyForMissing(Wrapped):
    async def download(self, path, **options):
        try:
            return await self.inner.download(path, **options)
        except FileNotFoundError:
            return FileContent(data=b"", size_bytes=0)


class StopsOnDisconnect(Wrapped):
    async def disconnect(self):
        await self.inner.stop()


class StopsOnce(Wrapped):
    stopped = False

    async def stop(self):
        if self.stopped:
            raise SandboxGone("stopped already")
        self.stopped = True
        await self.inner.stop()


class GoneIsAnExitCode(Wrapped):
    async def exec(self, argv, **options):
        try:
            return await self.inner.exec(argv, **options)
        except SandboxGone:
            return ExecResult(exit_code=137)


class Serial(Wrapped):
    def __init__(self, inner):
        super().__init__(inner)
        self.lock = anyio.Lock()

    async def exec(self, argv, **options):
        async with self.lock:
            return await self.inner.exec(argv, **options)


class ForgetsLabels(Provider):
    async def list(self, labels):
        return await self.inner.list({})


class ForgetsKeys(Provider):
    async def create(self, spec, *, key, timeout_s=60.0):
        self.made = [*getattr(self, "made", []), f"{key}-{secrets.token_hex(4)}"]
        return await self.inner.create(spec, key=self.made[-1], timeout_s=timeout_s)

    async def stop(self, key, *, timeout_s=30.0):
        for made in getattr(self, "made", []):
            if made.startswith(key):
                await self.inner.stop(made)


class ForgetsTimeToLive(Provider):
    async def create(self, spec, *, key, timeout_s=60.0):
        return await self.inner.create(evolve(spec, ttl_s=3600.0), key=key, timeout_s=timeout_s)


class ForgetsVariables(Provider):
    async def create(self, spec, *, key, timeout_s=60.0):
        return await self.inner.create(evolve(spec, env={}), key=key, timeout_s=timeout_s)


class LeaksVariables(Provider):
    async def create(self, spec, *, key, timeout_s=60.0):
        return await self.inner.create(
            evolve(spec, env={**os.environ, **spec.env}), key=key, timeout_s=timeout_s
        )


class TakesAnyDescriptor(Provider):
    async def connect(self, descriptor, *, timeout_s=30.0):
        try:
            return await self.inner.connect(descriptor, timeout_s=timeout_s)
        except SandboxConnectError:
            return object()


class TakesAnyWorkdir(Provider):
    async def create(self, spec, *, key, timeout_s=60.0):
        if not spec.workdir.startswith("/"):
            spec = evolve(spec, workdir="/tmp")
        return await self.inner.create(spec, key=key, timeout_s=timeout_s)


class IgnoresMounts(Provider):
    async def create(self, spec, *, key, timeout_s=60.0):
        return await self.inner.create(evolve(spec, mounts=()), key=key, timeout_s=timeout_s)


class CreatesBehindTheBack(Provider):
    """A cancelled create goes on."""

    async def create(self, spec, *, key, timeout_s=60.0):
        with anyio.CancelScope(shield=True):
            made = await self.inner.create(spec, key=key, timeout_s=timeout_s)
        await anyio.lowlevel.checkpoint()
        return made


def of(kind):
    return type("Broken", (Provider,), {"wrapped": kind})


DEFECTS = {
    "exit_codes_are_the_commands_own": of(changed_result(exit_code=lambda result: 0)),
    "death_by_signal_is_128_plus_n": of(changed_result(exit_code=lambda result: result.exit_code - 128)),
    "missing_program_is_127": of(changed_result(exit_code=lambda result: min(result.exit_code, 1))),
    "program_that_is_no_program_is_126": of(changed_result(exit_code=lambda result: 127)),
    "arguments_arrive_unchanged": of(ThroughShell),
    "streams_are_apart_and_binary": of(changed_result(stdout=lambda result: result.stdout + result.stderr)),
    "stdin_is_empty_and_closed_by_default": of(changed_call(stdin=lambda given: given or b"\n")),
    "large_stdin_arrives_whole": of(changed_call(stdin=lambda given: (given or b"")[:65536])),
    "environment_is_the_specifications": ForgetsVariables,
    "servers_environment_is_not_there": LeaksVariables,
    "commands_start_in_workdir": of(changed_call(cwd=lambda given: given or "/")),
    "output_is_kept_as_a_bounded_tail": of(changed_call(output_limit_bytes=lambda given: 10**6)),
    "output_of_exactly_the_limit_is_whole": of(changed_result(stdout_truncated=lambda result: True)),
    "each_command_has_its_own_session": of(WaitsForOutput),
    "deadline_kills_the_whole_group": of(EscapesItsGroup),
    "cancellation_kills_the_whole_group": of(EscapesItsGroup),
    "exec_ends_with_its_own_process": of(WaitsForOutput),
    "output_before_the_end_is_complete": of(changed_result(stdout=lambda result: result.stdout[:50000])),
    "commands_run_at_the_same_time": of(Serial),
    "files_come_back_unchanged": of(TextOnly),
    "odd_names_are_names": of(TextOnly),
    "upload_makes_parents_and_sets_the_mode": of(ForgetsTheMode),
    "upload_replaces_and_leaves_nothing_else": of(WritesThroughLinks),
    "replacing_is_atomic": of(WritesInPlace),
    "upload_refuses_what_is_no_file": of(WritesThroughLinks),
    "download_refuses_what_is_no_file": of(FollowsLinks),
    "missing_file_is_not_found": of(EmptyForMissing),
    "download_is_bounded": of(ForgetsTheLimit),
    "huge_sparse_file_is_bounded": of(ForgetsTheLimit),
    "foreign_descriptor_is_refused": TakesAnyDescriptor,
    "disconnect_leaves_it_alive": of(StopsOnDisconnect),
    "one_key_is_one_sandbox": ForgetsKeys,
    "racing_creates_of_a_key_are_one": ForgetsKeys,
    "list_finds_by_all_labels": ForgetsLabels,
    "stop_ends_it_for_everybody": of(StopsOnce),
    "stop_interrupts_a_running_command": of(GoneIsAnExitCode),
    "time_to_live_ends_it": ForgetsTimeToLive,
    "unfit_specification_is_refused": TakesAnyWorkdir,
    "impossible_mount_is_a_conflict": IgnoresMounts,
    "cancelled_create_leaves_nothing": CreatesBehindTheBack,
}


@pytest.mark.parametrize("name", DEFECTS)
async def test_check_finds_its_defect(name, tmp_path, monkeypatch):
    monkeypatch.setattr("inspan_runtime.testing.sandbox_check_support.PATIENCE_S", 2.0)
    for limit in ("PATIENCE_S", "ARRIVAL_S"):
        monkeypatch.setattr(f"inspan_runtime.testing.sandbox_command_checks.{limit}", 3.0)
    inner = LocalProvider({"runtime_dir": str(tmp_path / "run")})
    numbers = itertools.count()

    def make_spec(**changes):
        workdir = f"{tmp_path}/work/{next(numbers)}"
        return SandboxSpec(**{"workdir": workdir, "ttl_s": 60.0, **changes})

    try:
        with pytest.raises((CheckFailed, SandboxError, ExceptionGroup)) as raised:
            await CHECKS[name](DEFECTS[name](inner), make_spec)
        if isinstance(raised.value, ExceptionGroup):
            assert raised.group_contains(CheckFailed)
    finally:
        for descriptor in await inner.list({}):
            await (await inner.connect(descriptor)).stop()
