"""The engine's ``run`` command line of a specification."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

from inspan_core.sandbox import Mount, SandboxSpec
from inspan_runtime.providers.bwrap_command import CAPABILITIES
from inspan_runtime.providers.docker.engine import Engine, needed_limits
from inspan_runtime.providers.docker.portable import INSIDE, command_inside

LABEL = "inspan.sandbox"
DOOR = "/run/inspan/door"
# The keeper ends the container in time; this is for when the keeper was killed.
BACKSTOP_S = 10.0
FOREVER = "2147483647"
# Without the agent: make the workdir, collect orphans, end in time. `wait` needs a child to wait for.
PLAIN_INIT = """
mkdir -p -- "$2" || exit 1
trap 'exit 0' TERM INT
sleep "$1" & wait $!
"""


@frozen(kw_only=True)
class RunPlan:
    """What `run_arguments` needs beyond the specification.

    Attributes:
        engine: The engine.
        image: What is run: an id, so that nothing is pulled and no tag can have moved.
        sandbox_id: The container's name.
        state: The state folder on the host.
        base: The mounted interpreter, or None for a container without the agent.
        network: ``none``, or the name of a network of the engine.
        extra: Further engine options of the configuration.
    """

    engine: Engine
    image: str
    sandbox_id: str
    state: Path
    base: Path | None
    network: str
    extra: Sequence[str] = ()


def run_arguments(spec: SandboxSpec, plan: RunPlan) -> list[str]:
    """Return the arguments after the engine's own options; secrets are not among them."""
    made = ["run", "--detach", "--rm", f"--name={plan.sandbox_id}", f"--network={plan.network}"]
    made += ["--pull=never", f"--hostname={plan.sandbox_id}"]
    made += ["--log-driver=none"]  # What may write to the first process's output would fill the host's disk.
    made += [f"--cidfile={plan.state / 'container'}"]
    made += [f"--label={LABEL}={plan.state}"]
    made += [f"--label=inspan.label.{name}={value}" for name, value in spec.labels.items()]
    made += ["--cap-drop=ALL", *(f"--cap-add={one.removeprefix('CAP_')}" for one in CAPABILITIES)]
    made += ["--security-opt=no-new-privileges"]
    if plan.engine.is_podman:
        made += needed_limits()
    made += limit_options(spec)
    mounts = list(spec.mounts)
    if plan.base is not None:
        mounts += [Mount(source=str(plan.base), target=INSIDE)]
        mounts += [Mount(source=str(plan.state / "door"), target=DOOR)]
    made += [f"--mount={mount_option(one)}" for one in mounts]
    made += plan.extra
    if plan.base is not None:
        entry, *rest = command_inside()
        return [*made, "--user=0:0", f"--entrypoint={entry}", plan.image, *rest]
    made += [part for name in spec.env for part in ("--env", name)]
    ttl = FOREVER if spec.ttl_s is None else str(math.ceil(spec.ttl_s + BACKSTOP_S))
    init = ["-c", PLAIN_INIT, "init", ttl, spec.workdir]
    return [*made, "--env=LANG", "--user=0:0", "--entrypoint=/bin/sh", plan.image, *init]


def limit_options(spec: SandboxSpec) -> list[str]:
    """Return the options of processor, memory (no swap on top) and processes."""
    made: list[str] = []
    if spec.cpu is not None:
        made.append(f"--cpus={spec.cpu:g}")
    if spec.memory_mib is not None:
        made += [f"--memory={spec.memory_mib}m", f"--memory-swap={spec.memory_mib}m"]
    if spec.pids is not None:
        made.append(f"--pids-limit={spec.pids}")
    return made


def mount_option(one: Mount) -> str:
    """Return the value of ``--mount``: fields with commas, as the engine reads them."""
    fields = ["type=bind", f"source={one.source}", f"target={one.target}"]
    if one.read_only:
        fields.append("readonly")
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()
