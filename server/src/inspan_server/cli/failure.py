"""How a command says that it failed: a sentence on stderr, and one JSON object where JSON was asked for."""

from __future__ import annotations

import json
import sys


def failed(command: str, error: Exception | str, code: int, *, as_json: bool) -> int:
    """Say it.

    Args:
        command: For example ``"inspan harness"``.
        as_json: Whether stdout gets ``{"error": ..., "exit_code": ...}``.

    Returns:
        `code`.
    """
    if as_json:
        print(json.dumps({"error": str(error), "exit_code": code}, indent=2))
    print(f"{command}: {error}", file=sys.stderr)
    return code
