"""`inspan sandbox list` and `inspan sandbox reap`: what there is, whose, and what is left of dead runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import anyio

from inspan_core.errors import ConfigError, ProviderUnavailable, SandboxError
from inspan_core.sandbox import SandboxProvider
from inspan_runtime.providers.holding import HeldSandbox, HoldingProvider
from inspan_runtime.testing.sandbox_checks import capabilities_of
from inspan_server.cli.exit_codes import DONE, FAILED
from inspan_server.cli.printable import printable
from inspan_server.cli.sandbox_blocks import Block, Blocks

Found = tuple[Block, SandboxProvider, HeldSandbox]


def list_sandboxes(config: str | None, *, as_json: bool) -> int:
    """Print the providers and the sandboxes.

    Returns:
        0; 1 when a plugin is broken.
    """
    blocks = Blocks(config)
    found, faults = anyio.run(_found, blocks)
    able = {name: _capabilities(blocks, name) for name in blocks.names()}
    if as_json:
        providers = [
            {"name": name, "kind": blocks.block(name).kind, "can": able[name], "fault": faults.get(name)}
            for name in blocks.names()
        ]
        sandboxes = [_as_json(block, held) for block, _, held in found]
        broken = [str(each) for each in blocks.plugins.problems]
        print(json.dumps({"providers": providers, "sandboxes": sandboxes, "broken": broken}, indent=2))
    else:
        for name in blocks.names():
            print(f"{name:<14} {blocks.block(name).kind:<12} {', '.join(able[name])}")
            if name in faults:
                print(f"{'':<14} its sandboxes are not known: {faults[name]}")
        for block, _, held in found:
            print(_as_line(block, held))
        if not found:
            print("no sandbox is there")
        for each in blocks.plugins.problems:
            print(f"broken: {each}")
    return FAILED if blocks.plugins.problems else DONE


def _capabilities(blocks: Blocks, name: str) -> list[str]:
    try:
        return sorted(capabilities_of(blocks.provider(blocks.block(name))))
    except ConfigError:
        return []


def reap(
    config: str | None, *, labels: Mapping[str, str], older_than_s: float, dry_run: bool, as_json: bool
) -> int:
    """Remove what is left of dead runs.

    Args:
        config: An Agent Server's configuration, or None.
        labels: Only what carries all of them.
        older_than_s: Only what was created so long ago.
        dry_run: Whether it is only listed.
        as_json: Whether one JSON object is printed.

    Returns:
        0; 1 when something could not be removed.
    """
    blocks = Blocks(config)
    found, faults = anyio.run(_found, blocks)
    left = [
        one
        for one in found
        if not (one[2].holders and one[2].descriptor is not None)  # Without a keeper nobody has it any more.
        and labels.items() <= one[2].labels.items()
        and (one[2].age_s is None or one[2].age_s >= older_than_s)
    ]
    failures = {} if dry_run else anyio.run(_remove, left)
    if as_json:
        rows = [{**_as_json(block, held), "error": failures.get(held.sandbox_id)} for block, _, held in left]
        print(json.dumps({"dry_run": dry_run, "left": rows, "faults": faults}, indent=2))
    else:
        for block, _, held in left:
            failure = failures.get(held.sandbox_id)
            done = (
                "would be removed" if dry_run else "removed" if failure is None else f"NOT REMOVED: {failure}"
            )
            print(f"{_as_line(block, held)}  {done}")
        spared = len(found) - len(left)
        print(f"{len(left)} left of dead runs, {spared} spared")
        for name, fault in faults.items():
            print(f"{name}: its sandboxes are not known: {fault}", file=sys.stderr)
    return FAILED if failures else DONE


async def _found(blocks: Blocks) -> tuple[list[Found], dict[str, str]]:
    """Return all sandboxes, each once, and why those of a provider are not known."""
    found: list[Found] = []
    faults: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    for name in blocks.names():
        block = blocks.block(name)
        try:
            provider = blocks.provider(block)
            for held in await _held(provider):
                if (block.kind, held.sandbox_id) not in seen:
                    seen.add((block.kind, held.sandbox_id))
                    found.append((block, provider, held))
        except (ConfigError, ProviderUnavailable, SandboxError, OSError) as error:
            faults[name] = str(error)
    return found, faults


async def _held(provider: SandboxProvider) -> tuple[HeldSandbox, ...]:
    if isinstance(provider, HoldingProvider):
        return await provider.held()
    # Whose they are is not known: they are shown, and never reaped.
    return tuple(
        HeldSandbox(sandbox_id=str(one.get("sandbox_id")), descriptor=one, holders=(0,), what="runs")
        for one in await provider.list({})
    )


async def _remove(left: list[Found]) -> dict[str, str]:
    failures: dict[str, str] = {}
    for _, provider, held in left:
        assert isinstance(provider, HoldingProvider)
        try:
            await provider.remove(held)
        except (SandboxError, OSError) as error:
            failures[held.sandbox_id] = str(error)
    return failures


def _as_json(block: Block, held: HeldSandbox) -> dict[str, Any]:
    return {
        "provider": block.name,
        "sandbox_id": held.sandbox_id,
        "what": held.what,
        "labels": dict(held.labels),
        "age_s": held.age_s,
        "holders": list(held.holders),
    }


def _as_line(block: Block, held: HeldSandbox) -> str:
    age = "?" if held.age_s is None else f"{held.age_s:.0f} s"
    holders = ", ".join(map(str, held.holders)) or "none"
    labels = " ".join(f"{name}={value}" for name, value in held.labels.items())
    line = f"{held.sandbox_id}  {block.name}  {held.what}  age {age}  holders {holders}  {labels}".rstrip()
    return printable(line)  # Labels of containers are anybody's.
