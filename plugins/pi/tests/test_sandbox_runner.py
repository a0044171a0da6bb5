"""The shim as a real process, with small Python programs in place of Pi."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

import inspan_core.shim as runner

EVENT = """
import json, os, sys
def say(kind, **more):
    sys.stdout.write(json.dumps({"type": kind, **more}, separators=(",", ":")) + "\\n")
    sys.stdout.flush()
"""


def wait_for(condition, what, seconds=30.0):
    """Poll until `condition` gives something true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        os.sched_yield()
    raise AssertionError(f"{what} did not happen within {seconds} s")


def test_the_program_gets_prompt_environment_and_folder_and_the_input_is_gone(shim):
    program = EVENT + (
        "say('seen', prompt=sys.stdin.read(), cwd=os.getcwd(), home=os.environ['HOME'],"
        " task=os.environ['TASK'], own=os.environ['FOR_THE_PROGRAM'], argv=sys.argv[1:],"
        f" left=os.path.exists({str(shim.folder / 'input.json')!r}),"
        f" group=os.getpgid(0) == os.getpgid(os.getppid()), files=sorted(os.listdir({str(shim.folder)!r})))"
    )
    prompt = "line one\n\"quotes\" 'and' $HOME \u2028 \U0001f600 pkill -f pi " + "x" * 200_000
    assert shim.run(program, prompt=prompt) == 0
    [record] = shim.events()
    # The shim writes it when the program already runs.
    record["event"]["files"] = [name for name in record["event"]["files"] if "runtime_info" not in name]
    assert record["event"] == {
        "type": "seen",
        "prompt": prompt,
        "cwd": str(shim.work),
        "home": str(shim.home),
        "task": "kept",
        "own": "yes",
        "argv": [],
        "left": False,
        "group": True,
        "files": ["agent", "events.jsonl", "lib", "sandbox_runner.py", "stderr.log"],
    }
    assert (shim.folder / "agent" / "models.json").stat().st_mode & 0o777 == 0o600
    assert os.listdir(shim.home) == []


def test_output_and_process_metadata_say_who_ran_and_how_it_ended(shim):
    before = time.time()
    assert shim.run(EVENT + "say('a'); print('noise', file=sys.stderr); sys.exit(3)") == 3
    output, info = shim.read("output.json"), shim.read("runtime_info.json")
    assert before <= output["started_at"] <= output["ended_at"] <= time.time()
    del output["started_at"], output["ended_at"]
    assert output == {
        "return_code": 3,
        "error": None,
        "stopped": False,
        "events": {"written": 1, "dropped": 0},
        "last_dropped": None,
    }
    assert info["hostname"] == socket.gethostname()
    assert info["pid"] not in (os.getpid(), info["runner_pid"])
    assert (shim.folder / "stderr.log").read_text() == "noise\n"


def test_events_are_on_disk_while_the_program_still_runs(shim, tmp_path):
    program = EVENT + f"say('first')\nwhile not os.path.exists({str(tmp_path / 'go')!r}): os.sched_yield()\n"
    process = shim.start(program)
    path = shim.folder / "events.jsonl"
    wait_for(lambda: path.exists() and b"first" in path.read_bytes(), "the first event")
    assert process.poll() is None
    (tmp_path / "go").touch()
    assert process.wait(30) == 0


def test_a_stop_reaches_the_program_by_the_group_and_its_end_is_reported(shim):
    program = EVENT + (
        "import signal\n"
        # Not `say`: the signal may come while that very writer is at work.
        'def end(*_):\n    os.write(1, b\'{"type":"stopping"}\\n\')\n    os._exit(143)\n'
        "signal.signal(signal.SIGTERM, end)\nsay('ready')\n"
        "while True: signal.pause()\n"
    )
    process = shim.start(program)
    path = shim.folder / "events.jsonl"
    wait_for(lambda: path.exists() and b"ready" in path.read_bytes(), "the program")
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(30) == 143
    assert [record["event"]["type"] for record in shim.events()] == ["ready", "stopping"]
    assert shim.read("output.json")["stopped"] is True


def test_a_signal_that_kills_the_program_is_the_shims_own_end(shim):
    assert shim.run(EVENT + "say('a'); os.kill(os.getpid(), 9)") == -9
    assert shim.read("output.json")["return_code"] == -9
    assert [record["event"]["type"] for record in shim.events()] == ["a"]


def test_a_killed_group_leaves_the_events_so_far(shim):
    process = shim.start(EVENT + "say('a')\nimport signal\nsignal.pause()")
    path = shim.folder / "events.jsonl"
    wait_for(lambda: path.exists() and path.read_bytes().endswith(b"\n"), "the event")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    assert [record["event"]["type"] for record in shim.events()] == ["a"]
    assert not (shim.folder / "output.json").exists()


def test_the_shim_shows_no_telling_word(shim):
    process = shim.start("import signal, sys; print('{}'); sys.stdout.flush(); signal.pause()")
    wait_for(lambda: (shim.folder / "runtime_info.json").exists(), "the start")
    proc = Path(f"/proc/{process.pid}")
    assert (proc / "comm").read_text().strip() == runner.NAME.decode()
    assert (proc / "cmdline").read_bytes().rstrip(b"\0") == runner.NAME


def test_a_child_that_holds_the_pipe_open_does_not_hold_up_the_end(shim, tmp_path):
    pid_file = tmp_path / "pid"
    program = EVENT + (
        "import subprocess\nsay('a')\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
    )
    try:
        assert shim.run(program) == 0
        assert shim.read("output.json")["events"] == {"written": 1, "dropped": 0}
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_a_program_that_cannot_start_is_reported(shim):
    process = shim.start("", argv=["/no/such/program"])
    process.communicate(timeout=30)
    assert process.returncode == 70
    assert "FileNotFoundError" in shim.read("output.json")["error"]


def test_streaming_deltas_are_dropped_but_not_the_arguments_that_the_model_wrote(shim):
    program = EVENT + (
        "def delta(kind, **more):\n"
        "    say('message_update', usage={}, assistantMessageEvent={'type': kind, **more})\n"
        "say('message_start', message={'role': 'assistant'})\n"
        "delta('text_delta', contentIndex=0, delta='toolcall_delta')\n"
        "delta('toolcall_start', contentIndex=1, id='c', toolName='bash')\n"
        "delta('toolcall_delta', contentIndex=1, delta='{\"a\" ')\n"
        "delta('toolcall_delta', contentIndex=1, delta=':  1}')\n"
        "say('message_end', message={'role': 'assistant', 'content': []})\n"
        "say('turn_end', message={})\n"
        "say('message_end', message={'role': 'toolResult'})\n"
        "say('agent_end', messages=[1, 2, 3], willRetry=False)\n"
    )
    assert shim.run(program) == 0
    records = [{key: value for key, value in r.items() if key != "at"} for r in shim.events()]
    assert records == [
        {
            "raw_arguments": {"1": '{"a" :  1}'},
            "event": {"type": "message_end", "message": {"role": "assistant", "content": []}},
        },
        {"event": {"type": "message_end", "message": {"role": "toolResult"}}},
        {"event": {"type": "agent_end", "willRetry": False}},
    ]


def test_a_flood_of_events_is_bounded_and_its_last_answer_is_kept(shim):
    program = EVENT + (
        "for n in range(60): say('message_end', message={'role': 'toolResult', 'x': 'y' * 1000000})\n"
        "say('message_end', message={'role': 'assistant', 'content': [], 'stopReason': 'stop'})\n"
        "say('message_end', message={'role': 'assistant', 'x': 'y' * 900000, 'stopReason': 'stop'})\n"
    )
    assert shim.run(program) == 0
    assert (shim.folder / "events.jsonl").stat().st_size <= runner.EVENTS_LIMIT_BYTES
    output = shim.read("output.json")
    assert output["events"]["written"] + output["events"]["dropped"] == 62
    assert output["events"]["dropped"] > 10
    assert json.loads(output["last_dropped"])["event"]["message"]["stopReason"] == "stop"


def test_a_line_beyond_all_bounds_is_cut_and_said_so(shim):
    program = EVENT + (
        f"sys.stdout.write('z' * ({runner.LINE_LIMIT_BYTES} + 1000) + '\\n')\nsay('after')\n"
        "sys.stdout.write('no newline at the end')\n"
    )
    assert shim.run(program) == 0
    lines = (shim.folder / "events.jsonl").read_bytes().split(b"\n")
    cut = json.loads(lines[0])
    assert (cut["cut"], cut["head"]) == (1000, "z" * 4096)
    assert json.loads(lines[1])["event"] == {"type": "after"}
    assert b"no newline at the end" in lines[2]


def test_what_it_says_on_stderr_is_kept_as_a_tail_with_a_marker(shim):
    program = "import sys\nfor n in range(300): sys.stderr.write(str(n) + 'x' * 9999 + '\\n')\n"
    assert shim.run(program) == 0
    kept = (shim.folder / "stderr.log").read_bytes()
    assert kept.startswith(b"[truncated]\n")
    assert kept.endswith(b"299" + b"x" * 9999 + b"\n")
    assert len(kept) <= 2 * runner.STDERR_LIMIT_BYTES + 20


@pytest.mark.parametrize("planted", ["events.jsonl", "stderr.log"])
def test_a_link_in_the_session_folder_is_not_written_through(shim, tmp_path, planted):
    target = tmp_path / "precious"
    target.write_text("stays")
    (shim.folder / planted).symlink_to(target)
    process = shim.start(EVENT + "say('a')")
    process.communicate(timeout=30)
    assert process.returncode != 0
    assert target.read_text() == "stays"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_are_the_same_however_the_stream_is_cut(size):
    stream = "ein\u2028s\nzwei\n\ndrei\u00e9\nrest".encode()
    lines, found = runner.Lines(), []
    for start in range(0, len(stream), size):
        found += lines.feed(stream[start : start + size])
    assert found == [("ein\u2028s".encode(), 0), (b"zwei", 0), (b"", 0), ("drei\u00e9".encode(), 0)]
    assert lines.rest == b"rest"
