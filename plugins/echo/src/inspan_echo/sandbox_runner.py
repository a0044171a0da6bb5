"""The echo harness: asks the model, runs the shell commands that it asks for, until it answers with text.

Run as ``python3 -I -S sandbox_runner.py`` in the task's folder; its own files lie beside it:

    input.json    in   what to do; read, then deleted, since it holds the key of the model
    events.jsonl  out  what happened, a line as it happens: a killed run keeps its trace
    output.json   out  how it ended, written last and at once

Standard library of Python 3.8 or later, Linux. Exit code: 0 answered, 1 the model failed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = b"~"  # No word that a task's pkill may look for.
OUTPUT_LIMIT_BYTES = 32 * 1024
ERROR_BODY_LIMIT_BYTES = 16 * 1024
ANSWER_LIMIT_BYTES = 32 * 1024 * 1024
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading JSON of another shape than expected raises, also when it is nested too deep."""

SHELL_TOOL: Dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a shell command in the task's folder.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


def hide() -> None:
    """Put a neutral name over the command line: a task that runs `pkill -f python` means its own."""
    ctypes.CDLL(None).prctl(15, ctypes.c_char_p(NAME), 0, 0, 0)
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(NAME.ljust(end - start, b"\0"))
    except (OSError, IndexError, ValueError):
        pass  # Only the disguise is lost.


def take_input() -> Dict[str, Any]:
    os.chmod(HERE, 0o700)  # Most programs write prompts into files that everybody may read.
    path = os.path.join(HERE, "input.json")
    with open(path, encoding="utf-8") as file:
        task: Dict[str, Any] = json.load(file)
    os.unlink(path)
    return task


def record(event: str, **details: Any) -> None:
    """Append one event; each is on disk before the next thing happens."""
    line = json.dumps(dict(details, event=event, at=time.time()))
    with open(os.path.join(HERE, "events.jsonl"), "a", encoding="utf-8") as file:
        file.write(line + "\n")


def finish(**ending: Any) -> int:
    path = os.path.join(HERE, "output.json")
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(ending, file)
    os.replace(path + ".part", path)
    return 1 if ending["ended"] == "model_error" else 0


def ask_model(opener: Any, model: Dict[str, str], body: Dict[str, Any]) -> Dict[str, Any]:
    """One Chat Completions call, as long as it takes: only the supervisor's deadline ends it."""
    import urllib.request

    request = urllib.request.Request(
        model["base_url"] + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer " + model["key"]},
    )
    with opener.open(request) as answer:
        return dict(json.loads(answer.read(ANSWER_LIMIT_BYTES)))


def run_tool(number: int, call: Dict[str, Any], timeout_s: float) -> Tuple[str, str]:
    """The output that the model gets to see, and how the call ended."""
    if call["function"].get("name") != SHELL_TOOL["function"]["name"]:
        return "there is no such tool", "failed"
    try:
        command = json.loads(call["function"]["arguments"])["command"]
        argv = ["/bin/sh", "-c", command]
        path = os.path.join(HERE, "tool-%d.out" % number)
        # A file, not a pipe: a service that the command leaves behind would hold a pipe open.
        with open(path, "w+b") as output:
            tool = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
    except MALFORMED as error:
        return "the arguments are not an object with a command: %s" % error, "failed"
    except OSError as error:
        return "the command cannot be started: %s" % error, "failed"
    try:
        code, status = tool.wait(timeout_s), "completed"
    except subprocess.TimeoutExpired:
        os.killpg(tool.pid, signal.SIGKILL)
        code, status = tool.wait(), "timeout"
    with open(path, "rb") as output:
        size = os.path.getsize(path)
        output.seek(max(0, size - OUTPUT_LIMIT_BYTES))
        text = output.read(OUTPUT_LIMIT_BYTES).decode("utf-8", "replace")
    marker = "[only the last %d of %d bytes]\n" % (OUTPUT_LIMIT_BYTES, size)
    text = (marker if size > OUTPUT_LIMIT_BYTES else "") + text
    return text + ("" if code == 0 else "\n[exit code %d]" % code), status


def converse(task: Dict[str, Any]) -> int:
    """The whole loop: model, tools, model, ... until text."""
    import http.client  # Here, since they take 50 ms that a run without a model need not wait.
    import http.cookiejar
    import urllib.error
    import urllib.request

    model, messages, tools_run = task["model"], list(task["messages"]), 0
    cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    opener = urllib.request.build_opener(cookies, urllib.request.ProxyHandler({}))
    for _ in range(task["max_turns"]):
        body = dict(task["controls"], model=model["name"], messages=messages, tools=[SHELL_TOOL])
        record("model_asked")
        try:
            answer = ask_model(opener, model, body)
            choice, message = answer["choices"][0], answer["choices"][0]["message"]
            calls = [(call, call["id"], call["function"]) for call in message.get("tool_calls") or []]
        except urllib.error.HTTPError as error:
            text = error.read(ERROR_BODY_LIMIT_BYTES).decode("utf-8", "replace")
            return finish(ended="model_error", status=error.code, detail=text)
        except (*MALFORMED, OSError, http.client.HTTPException) as error:
            return finish(ended="model_error", status=None, detail="%s: %s" % (type(error).__name__, error))
        record(
            "model_answered",
            response_id=answer.get("id"),
            usage=answer.get("usage"),
            message=message,
            finish_reason=choice.get("finish_reason"),
        )
        messages.append(message)
        if not calls:
            return finish(ended="answered", finish_reason=choice.get("finish_reason"))
        for call, call_id, _ in calls:
            tools_run += 1
            record("tool_started", call_id=call_id)
            output, status = run_tool(tools_run, call, task["command_timeout_s"])
            record("tool_ended", call_id=call_id, output=output, status=status)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
    return finish(ended="turn_limit")


def main() -> int:
    hide()
    task = take_input()
    if task["model"] is not None:
        return converse(task)
    record("echoed", text=task["messages"][-1]["content"] if task["messages"] else "")
    return finish(ended="answered", finish_reason=None)


if __name__ == "__main__":
    sys.exit(main())
