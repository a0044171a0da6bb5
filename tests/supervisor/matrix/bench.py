"""Sessions in one sandbox, one after the other, through the controller's own functions."""

import json
import uuid
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
from attrs import define, field, frozen

from inspan_core.errors import EvidenceMissing, HarnessTerminationError, SandboxError
from inspan_core.harness import SandboxCommand
from inspan_core.receipts import CleanupReceipt
from inspan_core.sandbox import ExecResult, Sandbox
from inspan_runtime import supervisor_client as client
from inspan_supervisor import SUPERVISOR_FILE

HERE = Path(__file__).parent
STEP_S = 20.0
MARKER = "INSPAN_MATRIX"
GUEST_PROGRAMS = ("fake_harness.py", "storm.py", "observer.py")


class SetupFailed(Exception):
    """It never came to the ending that was to be tried: nothing was shown."""


class Violation(AssertionError):
    """A rule was broken."""


def require(condition, what):
    if not condition:
        raise Violation(what)


@asynccontextmanager
async def alone():
    """Raise what broke a rule, or else what went wrong first, out of its group of one or more."""
    try:
        yield
    except BaseExceptionGroup as group:
        leaves = list(leaves_of(group))
        raise next((one for one in leaves if isinstance(one, Violation)), leaves[0]) from None


def leaves_of(error):
    for one in error.exceptions:
        yield from leaves_of(one) if isinstance(one, BaseExceptionGroup) else (one,)


@frozen(kw_only=True)
class Budgets:
    """Of one run, in seconds; `receipt_s` is how long we wait for its receipt."""

    run_s: float = 60.0
    grace_s: float = 10.0
    cleanup_s: float = 15.0
    receipt_s: float = 30.0


@define
class Launch:
    """The supervisor's exec."""

    result: ExecResult | None = None
    ended: anyio.Event = field(factory=anyio.Event)

    async def exit_code(self, timeout_s=STEP_S):
        """Raises Violation when the exec has not returned in time: something holds it open."""
        with anyio.move_on_after(timeout_s):
            await self.ended.wait()
            return self.result.exit_code
        raise Violation(f"the supervisor's exec has not ended within {timeout_s} s")


@define
class Bench:
    """A sandbox with our programs in it, and a stranger whom no ending may hit."""

    sandbox: Sandbox
    root: str
    python: str
    strangers: list = field(factory=list)
    baseline: list | None = None
    budgets: Budgets = field(factory=Budgets)
    count: int = 0

    async def prepare(self, strangers=1):
        for name in GUEST_PROGRAMS:
            await self.sandbox.upload(f"{self.root}/{name}", (HERE / name).read_bytes())
        await self.add_strangers(strangers, ["sleep", "100000"])
        return self

    async def add_strangers(self, count, argv):
        """Start processes that no ending may hit."""
        self.strangers += (await self.observe("stranger", count=count, argv=argv))["started"]
        if self.baseline is not None:
            await self.isolate()

    async def isolate(self):
        """From now on whoever lives after a sweep, beside those who live now, has escaped."""
        self.baseline = (await self.observe("sweep", marker="nobody"))["living"]
        return self

    @contextmanager
    def limited(self, pids):
        """Meanwhile the sandbox has no more processes than that; it was made with a higher limit."""
        folders = Path(self.sandbox.descriptor["state"], "cgroups").read_text().splitlines()
        [file] = [file for file in (Path(folder, "pids.max") for folder in folders) if file.exists()]
        before = file.read_text()
        file.write_text(str(pids))
        try:
            yield
        finally:
            file.write_text(before)

    async def observe(self, do, **order):
        """Run the observer. Raises SetupFailed when it gives up or cannot be run."""
        argv = [self.python, "-I", "-S", f"{self.root}/observer.py", json.dumps({"do": do, **order})]
        try:
            result = await self.sandbox.exec(argv, timeout_s=2 * STEP_S, cwd="/")
        except SandboxError as error:
            raise SetupFailed(f"{do}: {error}") from error
        if result.exit_code != 0:
            raise SetupFailed(f"{do}: {result.stderr.decode(errors='replace')[-2000:]}")
        return json.loads(result.stdout)

    async def session(self, source=None):
        self.count += 1
        place = f"{self.root}/{self.count}"
        session = Session(self, f"{place}/session", f"{place}/work", uuid.uuid4().hex, source)
        await self.sandbox.upload(f"{session.work}/.made", b"")
        return session


@define
class Session:
    """A fresh session folder and a fresh task folder; `source` is another supervisor than ours."""

    bench: Bench
    dir: str
    work: str
    marker: str
    source: bytes | None = None

    async def stage(self, argv, budgets, drain="seed"):
        env = {MARKER: self.marker, "WORK": self.work, "DIR": self.dir}
        command = SandboxCommand(argv=argv, python=self.bench.python, env=env)
        await client.write_command(
            self.bench.sandbox, self.dir, command, cwd=self.work, timeout_s=budgets.run_s,
            grace_s=budgets.grace_s, cleanup_timeout_s=budgets.cleanup_s, drain=drain)  # fmt: skip
        if self.source is not None:
            await self.bench.sandbox.upload(f"{self.dir}/{SUPERVISOR_FILE}", self.source, mode=0o600)

    @asynccontextmanager
    async def launched(self, prelude=""):
        """Launch; at the end nothing with our marker is left, and in an isolated sandbox nobody at all.

        `prelude`: a statement that Python runs before it loads the supervisor: a kernel that lacks something.
        """
        launch = Launch()
        async with alone(), anyio.create_task_group() as tasks:
            tasks.start_soon(self._run, launch, prelude)
            try:
                yield launch
                await launch.exit_code()
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self.observe("sweep")
                tasks.cancel_scope.cancel()
                raise
        await self.sweep()

    async def _run(self, launch, prelude):
        argv = client.supervised_launch_command(self.bench.python, self.dir)
        if prelude:
            argv[argv.index("-c") + 1] = f"{prelude}; {argv[argv.index('-c') + 1]}"
        launch.result = await self.bench.sandbox.exec(argv, timeout_s=120.0, cwd="/")
        launch.ended.set()

    async def observe(self, do, **order):
        places = {"session_dir": self.dir, "work": self.work, "marker": self.marker}
        return await self.bench.observe(
            do, **{**places, "strangers": self.bench.strangers, "timeout_s": STEP_S, **order}
        )

    async def sweep(self):
        living = (await self.observe("sweep", until=self.bench.baseline))["living"]
        if self.bench.baseline is not None and living != self.bench.baseline:
            before, self.bench.baseline = self.bench.baseline, living  # Let it not be blamed on others.
            raise SetupFailed(f"in the sandbox live {living}, and not {before}")

    async def stop(self, budgets):
        """The receipt of a stopped run. Raises Violation when there is none, or a negative one."""
        return await self._confirmed(
            client.stop_and_confirm_cleanup(self.bench.sandbox, self.dir, timeout_s=budgets.receipt_s)
        )

    async def ended(self, launch, budgets):
        """The receipt of a run that ends without us."""
        await launch.exit_code(budgets.receipt_s)
        return await self._confirmed(
            client.await_receipt(self.bench.sandbox, self.dir, timeout_s=budgets.receipt_s, launch_over=True)
        )

    async def _confirmed(self, waiting):
        try:
            receipt = await waiting
        except (HarnessTerminationError, EvidenceMissing) as error:
            raise Violation(f"no confirmed receipt: {error}") from error
        if not isinstance(receipt, CleanupReceipt):
            raise Violation(f"a harness that was launched is said to be {receipt}")
        if not receipt.cleanup_confirmed:
            raise Violation(f"no confirmed receipt: {receipt}")
        return receipt

    async def report(self):
        report = await client.read_processes(self.bench.sandbox, self.dir)
        if report is None:
            raise Violation("there is no report of processes beside the receipt")
        return report.to_json()

    async def assassinate(self, pid):
        """Kill the harness, as somebody else, while it handles its SIGTERM."""
        await self.observe("kill_at_term", kill=pid)
