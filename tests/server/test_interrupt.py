"""Ctrl-C while `inspan` is still loading is an exit code, not a traceback."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from inspan_server.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("argparse", ["harness", "list"]),
        ("inspan_server.cli.parser", ["harness", "list"]),
        ("attrs", ["machine", "show"]),
        ("inspan_core.plugins", ["harness", "list"]),
        ("inspan_server.cli.config", ["config", "check", "/none"]),
        ("hypercorn.config", ["serve", "--config", "/none"]),
        ("inspan_server.cli.demo", ["demo"]),
    ],
)
def test_an_interrupt_at_any_import_ends_quietly(module, arguments):
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, *arguments], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr.strip()) == (130, "")
