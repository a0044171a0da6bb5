"""A session in a plain folder, and a model that is a real HTTP server with scripted answers."""

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import anyio
import pytest

import inspan_echo
from inspan_core.harness import ArtifactProblem, Artifacts, ParseInput, Target
from inspan_supervisor import COMMAND_FILE, RECEIPT_FILE, STOP_FILE, SUPERVISOR_FILE, supervisor_source

KEY = "sk-not-for-the-model-to-see"
DEFAULTS = inspan_echo.inspan_harness().options


class FolderContext:
    """What the hooks see of a session, in a folder of this machine."""

    def __init__(self, folder, **activation):
        self.session_dir = str(folder / "session")
        self.workdir = str(folder / "work")
        os.makedirs(self.session_dir)
        os.makedirs(self.workdir)
        self.installer = self
        self.runtime = {}
        self.files, self.problems = {}, []
        self.__dict__.update(activation)

    async def target(self):
        return Target(os="linux", arch="x86_64", libc="glibc", python=sys.executable)

    async def upload_text(self, name, text, *, mode=0o600):
        path = anyio.Path(self.session_dir, name)
        await path.touch(mode)
        await path.write_text(text, encoding="utf-8")
        return str(path)

    async def download(self, name, *, limit_bytes, tail=False):
        try:
            data = await anyio.Path(self.session_dir, name).read_bytes()
        except FileNotFoundError:
            problem = ArtifactProblem(name=name, code="artifact_missing", detail="it is not there")
            self.problems.append(problem)
            return False
        self.files[name] = data[-limit_bytes:]
        return True


@pytest.fixture
def model():
    """A model that answers from `model.replies` (a dict, or a status and a body) and keeps every request."""
    state = SimpleNamespace(replies=[], requests=[], headers=[], asked=threading.Event())
    state.release = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.requests.append((self.path, json.loads(body)))
            state.headers.append(dict(self.headers))
            state.asked.set()
            reply = state.replies.pop(0) if state.replies else (500, {"error": "no reply left"})
            if reply == "silence":
                state.release.wait(30)
                return
            status, answer = reply if isinstance(reply, tuple) else (200, reply)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Set-Cookie", f"turn={len(state.requests)}")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.base_url = f"http://127.0.0.1:{server.server_port}/ng-rollout/r/v1"
    yield state
    state.release.set()
    server.shutdown()
    server.server_close()
    thread.join(10)


def answer(content=None, *calls, response_id="chatcmpl-1", usage=(10, 5), finish_reason=None, **message):
    """A Chat Completions answer; calls are pairs of an id and a command."""
    tool_calls = [
        {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}
        for call_id, arguments in calls
    ]
    return {
        "id": response_id,
        "choices": [
            {
                "message": {
                    "role": "assistant",
                    "content": content,
                    **({"tool_calls": tool_calls} if tool_calls else {}),
                    **message,
                },
                "finish_reason": finish_reason or ("tool_calls" if tool_calls else "stop"),
            }
        ],
        "usage": usage if usage is None else {"prompt_tokens": usage[0], "completion_tokens": usage[1]},
    }


@pytest.fixture
def echo(tmp_path, model):
    """Run one activation through all hooks, under the real supervisor."""
    count = iter(range(100))

    @contextmanager
    def started(request, *, timeout_s=30.0, **options):
        context = FolderContext(
            tmp_path / str(next(count)),
            request=request,
            options={**DEFAULTS, **options},
            model_base_url=model.base_url,
            model_name="policy",
            model_key=KEY,
            run_timeout_s=timeout_s,
        )

        async def stage():
            context.runtime = await inspan_echo.inspan_install(context)
            return await inspan_echo.inspan_stage(context)

        command = anyio.run(stage)
        context.argv = list(command.argv)
        folder = context.session_dir
        with open(os.path.join(folder, SUPERVISOR_FILE), "wb") as file:
            file.write(supervisor_source())
        order = {"argv": context.argv, "env": {"PATH": os.environ["PATH"], **command.env}}
        order.update(timeout_s=timeout_s, cleanup_timeout_s=10, grace_s=1, cwd=context.workdir)
        with open(os.path.join(folder, COMMAND_FILE), "w") as file:
            json.dump(order, file)
        process = subprocess.Popen(
            [command.python, "-I", "-S", os.path.join(folder, SUPERVISOR_FILE), folder],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

        def end(*, interrupted=False):
            complaint = process.communicate(timeout=60)[1]
            assert os.path.exists(os.path.join(folder, RECEIPT_FILE)), complaint
            with open(os.path.join(folder, RECEIPT_FILE)) as file:
                receipt = json.load(file)
            assert receipt["cleanup_confirmed"] is True, complaint
            anyio.run(inspan_echo.inspan_collect, context)
            context.receipt = receipt
            return inspan_echo.inspan_parse(
                run=ParseInput(
                    artifacts=Artifacts(files=context.files, problems=context.problems),
                    request=request,
                    return_code=receipt["return_code"],
                    timed_out=receipt["timed_out"],
                    interrupted=interrupted,
                    model_name="policy",
                    sandbox_id="box",
                    options=context.options,
                )
            )

        def stop():
            with open(os.path.join(folder, STOP_FILE), "w"):
                pass

        try:
            yield SimpleNamespace(context=context, end=end, stop=stop, process=process)
        finally:
            if process.poll() is None:
                stop()
                process.communicate(timeout=60)
            if not process.stderr.closed:
                process.stderr.close()

    def run(request, **options):
        with started(request, **options) as running:
            return running.end()

    return SimpleNamespace(run=run, started=started, answer=answer, key=KEY)
