"""Codex's own part of the shim, as a real process with small Python programs in place of Codex."""

from __future__ import annotations

import json

import inspan_core.shim as library

SAY = """
import json, os, sys
def say(kind, **more):
    sys.stdout.write(json.dumps({"type": kind, **more}, separators=(",", ":")) + "\\n")
"""


def test_the_program_runs_under_the_neutral_name_with_its_files_and_prompt(shim):
    program = SAY + (
        "command = open('/proc/self/cmdline').read().split('\\0')\n"
        "home = os.environ['CODEX_HOME']\n"
        "say('seen', command=command[:2], prompt=sys.stdin.read(), config=open(home + '/config.toml').read(),"
        " mode=oct(os.stat(home + '/config.toml').st_mode & 0o777), cwd=os.getcwd(),"
        f" input=os.path.exists({str(shim.folder / 'input.json')!r}))"
    )
    assert shim.run(program) == 0
    [record] = shim.events()
    assert record["event"] == {
        "type": "seen",
        "command": ["neutral", "-c"],
        "prompt": "hello",
        "config": "model = 'x'\n",
        "mode": "0o600",
        "cwd": str(shim.work),
        "input": False,
    }
    info = json.loads((shim.folder / "runtime_info.json").read_text())
    assert info["interpreter"].startswith("/")


def test_growing_output_is_dropped_and_everything_else_is_kept(shim):
    program = SAY + "say('item.started')\nsay('item.updated', x=1)\nsay('item.completed')\nprint('noise')\n"
    assert shim.run(program) == 0
    lines = (shim.folder / "events.jsonl").read_bytes().split(b"\n")
    assert [json.loads(line)["event"]["type"] for line in lines[:2]] == ["item.started", "item.completed"]
    assert lines[2].endswith(b'"event":noise}')


def test_a_flood_is_bounded_and_the_turn_s_end_is_kept(shim):
    program = SAY + (
        "for n in range(60): say('item.completed', x='y' * 1000000)\n"
        "say('turn.failed', error={'message': 'late'}, x='y' * 900000)\n"
    )
    assert shim.run(program) == 0
    assert (shim.folder / "events.jsonl").stat().st_size <= library.EVENTS_LIMIT_BYTES
    output = json.loads((shim.folder / "output.json").read_text())
    assert output["events"]["dropped"] > 10
    assert json.loads(output["last_dropped"])["event"]["error"] == {"message": "late"}
