"""Run a harness under supervision from your own program: no server, no HTTP, a sandbox of your choice.

    pip install 'inspan-core[runtime]'
    python embed_without_server.py [FOLDER]

The harness here is three lines of shell. Prints what it wrote, and its termination receipt.
"""

import sys
import tempfile
from pathlib import Path

import anyio

from inspan_core import SandboxCommand, SandboxSpec
from inspan_runtime.providers.local import LocalProvider
from inspan_runtime.sandbox_session import SandboxSession

HARNESS = """
echo "working in $(pwd)" > notes.txt
sleep 300 &  # left behind: its end is proven before anything is collected
echo "the answer is $(( $FACTOR * 7 ))" > "$RESULT"
"""


async def main(folder: Path) -> None:
    """Create a sandbox, run the harness once in it, print, and stop the sandbox."""
    provider = LocalProvider({"runtime_dir": str(folder / "run")})
    sandbox = await provider.create(SandboxSpec(workdir=str(folder / "task")), key="example", timeout_s=60)
    files = f"{sandbox.descriptor['scratch']}/session"
    result = f"{files}/result.txt"

    async def stage() -> SandboxCommand:
        await sandbox.upload(f"{files}/harness.sh", HARNESS.encode())
        return SandboxCommand(
            argv=["/bin/sh", f"{files}/harness.sh"],
            python=sandbox.descriptor["python"],
            env={"FACTOR": "6", "RESULT": result},
        )

    async def collect() -> str:
        return (await sandbox.download(result, limit_bytes=4096)).data.decode()

    session = SandboxSession[str](
        sandbox=sandbox, session_dir=files, workdir=str(folder / "task"), owns_sandbox=True, harness="shell"
    )
    try:
        answer = await session.execute(stage_activation=stage, collect=collect, timeout=60, close_timeout=30)
        print(answer.strip())
        print(session.receipt)
    finally:
        await session.close(timeout=30)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        anyio.run(main, Path(sys.argv[1] if len(sys.argv) > 1 else temporary).resolve())
