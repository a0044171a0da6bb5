"""For all tests: programs that they start begin as from a terminal."""

from __future__ import annotations

import signal

# A shell that runs the tests in its background has them ignore SIGINT, and so would all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
