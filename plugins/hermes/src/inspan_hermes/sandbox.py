"""What the shim says of the process that it runs."""

from __future__ import annotations

from inspan_core.process_info import HarnessProcessInfo, parse_runtime_info

__all__ = ["HarnessProcessInfo", "parse_runtime_info"]
