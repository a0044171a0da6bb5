"""`inspan harness list`: what is installed, and what is broken and why."""

from __future__ import annotations

import json

from inspan_core.plugins import load_plugins


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
