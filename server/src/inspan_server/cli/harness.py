"""`inspan harness list` and `show`: what is installed, what it supports, and what is broken and why."""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any

from attrs import asdict

from inspan_core.plugins import load_plugins
from inspan_core.relay import Harness

LEVELS = {
    1: "host call",
    2: "sandboxed session",
    3: "tool grants",
    4: "trajectory evidence",
    5: "training",
}


def list_harnesses(*, as_json: bool) -> int:
    """Print the installed harnesses and the broken plugins.

    Returns:
        0; 1 when some plugin is broken.
    """
    plugins = load_plugins()
    specs = [plugins.harness(name).spec for name in plugins.harness_names()]
    if as_json:
        listed = [
            {
                "name": spec.name,
                "version": spec.version,
                "model_api": spec.model_api,
                "level": spec.level,
                "summary": spec.summary,
            }
            for spec in specs
        ]
        problems = [{"distribution": each.distribution, "message": each.message} for each in plugins.problems]
        print(json.dumps({"harnesses": listed, "broken": problems}, indent=2))
    else:
        for spec in specs:
            print(
                f"{spec.name:<12} {spec.version:<10} {spec.model_api:<17} level {spec.level}  {spec.summary}"
            )
        if not specs:
            print("no harness is installed (try: pip install inspan-pi)")
        for each in plugins.problems:
            print(f"broken: {each}")
    return 1 if plugins.problems else 0


def show_harness(name: str, *, as_json: bool) -> int:
    """Print what a harness supports.

    Returns:
        0.

    Raises:
        PluginError: There is no such harness, or it is broken.
    """
    told = described(load_plugins().harness(name))
    print(json.dumps(told, indent=2) if as_json else _page(told))
    return 0


def described(harness: Harness) -> dict[str, Any]:
    """A declaration as JSON: what `show` prints."""
    spec = harness.spec
    return {
        "name": spec.name,
        "summary": spec.summary,
        "version": spec.version,
        "distribution": harness.distribution,
        "distribution_version": _version(harness.distribution),
        "level": spec.level,
        "level_name": LEVELS[spec.level],
        "model_api": spec.model_api,
        "tool_sources": sorted(spec.tool_sources),
        "builtin_tools": sorted(spec.builtin_tools),
        "request_fields": {
            use: sorted(field for field, how in spec.request_fields.items() if how == use)
            for use in ("applied", "ignored", "refused")
        },
        "options": dict(spec.options),
        "needs": asdict(spec.needs),
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None  # A plugin that was given as an object.


def _needs(needs: dict[str, Any]) -> list[str]:
    free = [f"{needs['free_mib']:g} MiB free"] if needs["free_mib"] else []
    return [*needs["programs"], *(["CA certificates"] if needs["certificates"] else []), *free]


def _page(told: dict[str, Any]) -> str:
    fields = told["request_fields"]
    refused = ", ".join([*fields["refused"], "every other field (422)"])
    rows = [
        ("program", f"{told['name']} {told['version']}"),
        ("plugin", f"{told['distribution']} {told['distribution_version'] or ''}".rstrip()),
        ("level", f"{told['level']}, {told['level_name']}"),
        ("model API", told["model_api"]),
        ("tool sources", ", ".join(told["tool_sources"])),
        ("its own tools", ", ".join(told["builtin_tools"]) or "none"),
        ("applied", ", ".join(fields["applied"])),
        ("ignored", ", ".join(fields["ignored"]) or "nothing"),
        ("refused", refused),
        ("needs", ", ".join(_needs(told["needs"])) or "nothing beside its runtime"),
    ]
    options = [f"  {name}: {json.dumps(default)}" for name, default in told["options"].items()]
    lines = [told["summary"], "", *(f"{what:<14} {value}" for what, value in rows), ""]
    return "\n".join([*lines, "options (harness_options) and their defaults:", *(options or ["  none"])])
