"""The openai policy against a real server: `transformers serve`, with a model that is built here."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import model_kit
import pytest
from test_tools import TASK, Scripted

from cuda_agent_backend.agent.loop import Budget, run_episode
from cuda_agent_backend.agent.policies.mixed import SearchLast
from cuda_agent_backend.agent.policies.registry import make_policy
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.policies.spec import Limits, PolicySpec, Sampling
from cuda_agent_backend.agent.protocol import Message, Policy, Schema, Stopped, Turn, closed
from cuda_agent_backend.agent.tools.toolbox import Toolbox

SAID = [
    '<tool_call>{"name": "look", "arguments": {}}</tool_call>',
    'First this.<tool_call>{"name": "nobody", "arguments": {"x": [1, {"y": "\\u00e9"}]}}</tool_call>',
    '<tool_call>{"name": "sketch", "arguments": {"schedule": 3}}</tool_call>',
    '<tool_call>{"name": "profile", "arguments": {}}</tool_call><tool_call>{"name": "look"}</tool_call>',
    '<tool_call>{"name": "verify", "argu</tool_call>',
]
"""A call that is right, ones that are wrong in several ways, and one that the server itself fails at."""


START_S = 240.0
VLLM_PYTHON = "VLLM_PYTHON"
"""A Python that has vLLM, see `make test-vllm`."""


@contextmanager
def serving(words: Sequence[str], home: Path, port: int) -> Iterator[str]:
    """A server on a port for the time of a test, that finds no model but those in folders; the URL of its endpoint."""
    (home / "hub").mkdir()  # what lists models wants it to exist
    place = {"HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "HF_HUB_OFFLINE": "1"}
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(
            words,
            env={**os.environ, **place, "CUDA_VISIBLE_DEVICES": ""},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _await(f"http://127.0.0.1:{port}/health", server, home / "log")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        with suppress(ProcessLookupError):  # it may have ended by itself, which its log explains
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`transformers serve`, which loads the models that are asked for."""
    for package in ("uvicorn", "fastapi"):
        pytest.importorskip(package, reason="no server: pip install 'transformers[serving]'")
    start, port = "from transformers.cli.transformers import main; main()", free_port()
    words = ["serve", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with serving(
        [sys.executable, "-c", start, *words], tmp_path_factory.mktemp("home"), port
    ) as at:
        yield at


def _await(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(log.read_text(errors="replace")[-3000:])


class AFew:
    """A policy that ends after some turns."""

    name = "a few"

    def __init__(self, policy: Policy, turns: int) -> None:
        self.policy, self.left = policy, turns

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        self.left -= 1
        return self.policy.act(messages, tools) if self.left >= 0 else Turn("enough")


def model(folder: Path, url: str) -> Policy:
    sampling = Sampling(temperature=1.0, max_new_tokens=16)
    limits = Limits(timeout_s=120.0, retries=10)
    return make_policy(PolicySpec("openai", str(folder), url, sampling, limits))


def said_by_both(policy: Policy) -> list[tuple[str, bool]]:
    """The model's calls in an episode that the search ends, and whether each went well."""
    with closed(policy):
        mixture = SearchLast("mixture", AFew(policy, 10), SearchPolicy())
        found = run_episode(mixture, Toolbox(TASK, Scripted()), Budget(1e9))
    assert found.best is not None
    tools = [m for m in found.trajectory if m["role"] == "tool"]
    answers = {m["tool_call_id"]: json.loads(m["content"]) for m in tools}
    return [
        (call["function"]["name"], answers[call["id"]]["ok"])
        for m in found.trajectory
        for call in m.get("tool_calls", ())
        if not call["id"].startswith("search_")
    ]


def test_a_whole_episode_with_a_real_server(tmp_path: Path, url: str) -> None:
    """The model looks, and calls what there is not and what is malformed; then the search finds a winner."""
    called = said_by_both(model(model_kit.build_speaking(tmp_path / "model", SAID), url))
    assert len(called) >= 10
    assert set(called) <= {(name, name == "look") for name, _ in called}
    assert len(set(called)) >= 2, "of five kinds in ten draws"


@pytest.fixture
def vllm_python() -> str:
    python = os.environ.get(VLLM_PYTHON)
    if not python:
        pytest.skip("no vLLM here: make test-vllm")
    return python


@pytest.mark.slow
def test_a_whole_episode_with_vllms_server(tmp_path: Path, vllm_python: str) -> None:
    folder, port = model_kit.build_speaking(tmp_path / "model", SAID), free_port()
    words = ["--model", str(folder), "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
             "--max-model-len", str(1 << 16), "--kv-cache-memory-bytes", str(1 << 29),
             "--gpu-memory-utilization", "0.2", "--enforce-eager",
             "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]  # fmt: skip
    start = [vllm_python, "-m", "vllm.entrypoints.openai.api_server"]
    (tmp_path / "home").mkdir()
    with serving([*start, *words], tmp_path / "home", port) as at:
        called = said_by_both(model(folder, at))
    assert len(called) >= 10
    assert set(called) <= {(name, name == "look") for name, _ in called}


IN_PROCESS = """
import json, sys
from cuda_agent_backend.agent.policies import vllm_engine
from cuda_agent_backend.agent.policies.spec import Sampling

if __name__ == "__main__":
    sampling = Sampling(temperature=1.0, max_new_tokens=5, seed=1)
    engine = vllm_engine.load(sys.argv[1], json.loads(sys.argv[2]), sampling, 0.2,
                              max_model_len=64, kv_cache_memory_bytes=1 << 26, enforce_eager=True)
    made = engine.generate(json.loads(sys.argv[3]))
    print("MADE", json.dumps([engine.window, [[s.ids, s.logprobs, s.ended] for s in made]]))
"""


@pytest.mark.slow
def test_vllm_samples_in_the_process(tmp_path: Path, vllm_python: str) -> None:
    """After the template's last id one of the messages, with its likelihood, and then the end."""
    from transformers import AutoTokenizer

    folder = model_kit.build_speaking(tmp_path / "model", SAID)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked, end = tokenizer("assistant\n")["input_ids"], tokenizer.eos_token_id
    script = tmp_path / "script.py"
    script.write_text(IN_PROCESS)
    own = {"PYTHONPATH": str(Path(__file__).parents[2]), "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(
        [vllm_python, script, folder, json.dumps([end]), json.dumps([asked, [3, *asked]])],
        env={**os.environ, **own, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=START_S,
    )
    found = [line for line in ran.stdout.splitlines() if line.startswith("MADE ")]
    assert found, ran.stdout[-2000:] + ran.stderr[-2000:]
    window, made = json.loads(found[0].removeprefix("MADE "))
    assert window == 64 and len(made) == 2
    for ids, logprobs, ended in made:
        assert tokenizer.decode(ids[:1]) in SAID and ids[1:] == [end] and ended
        assert logprobs == pytest.approx([-math.log(len(SAID)), 0.0], abs=0.01)


def test_nonsense_from_a_real_server_ends_an_episode_well(tmp_path: Path, url: str) -> None:
    policy = model(model_kit.build(tmp_path / "model", window=1 << 16), url)
    with closed(policy):
        alone = run_episode(policy, Toolbox(TASK, Scripted()), Budget(1e9, turns=3))
        assert alone.best is None and alone.turns >= 1
        assert not any("tool_calls" in m for m in alone.trajectory)
        mixture = SearchLast("mixture", AFew(policy, 2), SearchPolicy())
        assert run_episode(mixture, Toolbox(TASK, Scripted()), Budget(1e9)).best is not None
