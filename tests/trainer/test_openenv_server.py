"""The environment served to clients of OpenEnv: sessions side by side, bad actions, episodes that end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from toy_world import ToyWorld

from cuda_agent_backend.agent.loop import ENDED
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.protocol import ToolCall, Turn
from trainer.command import main
from trainer.environment.actions import BadAction, turn_of
from trainer.environment.session import Session
from trainer.integrations import command
from trainer.rollout.table_world import TableWorld
from trainer.stages.config import WorldSettings
from trainer.stages.worlds import world_of

ROOT = Path(__file__).parents[2]
TABLES = Path(__file__).parent / "data" / "cpu-tables.parquet"
SESSIONS = 3
needs_openenv = pytest.mark.skipif(
    find_spec("openenv") is None,
    reason='the extra openenv is not installed: pip install "cuda_agent[openenv]"',
)


@pytest.fixture(scope="module")
def world() -> TableWorld:
    made = world_of(WorldSettings(paths=(str(TABLES),)))
    assert isinstance(made, TableWorld)
    return made


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "world.toml"
    path.write_text(f"[world]\npaths = [{json.dumps(str(TABLES))}]\n")
    return path


@pytest.fixture(scope="module")
def address(config: Path) -> Iterator[str]:
    """Of a server in a process of its own, which is told to terminate at the end."""
    words = ["serve-env", str(config), "--port", "0", "--sessions", str(SESSIONS)]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(
        [sys.executable, "-m", "trainer.command", *words],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.search(r"(\d+) tasks served at (http://127\.0\.0\.1:\d+)", line)
        assert found, (line, server.poll())
        yield found.group(2)
        server.send_signal(signal.SIGTERM)
        _, said = server.communicate(timeout=60)
        assert server.returncode == 130 and said.endswith("what is done is kept\n"), said
    finally:
        server.kill()
        server.wait()


def connected(address: str) -> Any:
    from openenv.core import GenericEnvClient

    return GenericEnvClient(base_url=address).sync()


def message(*calls: tuple[str, Any]) -> dict[str, Any]:
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return {"content": "", "tool_calls": [{"function": function} for function in functions]}


def searched(
    world: TableWorld, task: str, seed: int
) -> tuple[list[Turn], list[list[Any]], Session]:
    """The search's turns, what the environment said before each and at the end, and the session."""
    policy, session = SearchPolicy(), Session(world)
    said = [session.start(task, seed)]
    messages, turns = list(said[0]), list[Turn]()
    while session.outcome is None:
        turn = policy.act(messages, session.schemas)
        assert isinstance(turn, Turn)
        turns.append(turn)
        said.append(session.take(turn))
        messages += [turn.to_message(), *said[-1]]
    return turns, said, session


@needs_openenv
def test_sessions_side_by_side_do_not_disturb_each_other(address: str, world: TableWorld) -> None:
    """Two clients take turns by turns; each hears what it would hear alone, to the last digit."""
    wanted = [searched(world, task, seed) for seed, task in enumerate(world.tasks[:2])]
    with connected(address) as one, connected(address) as other:
        clients = [one, other]
        seen = [
            client.reset(task=task, seed=seed)
            for seed, (client, task) in enumerate(zip(clients, world.tasks[:2], strict=True))
        ]
        heard: list[list[Any]] = [[found.observation["messages"]] for found in seen]
        assert all(found.observation["tools"] for found in seen)
        for step in range(max(len(turns) for turns, _, _ in wanted)):
            for number, (turns, _, _) in enumerate(wanted):
                if step < len(turns):
                    assert not seen[number].done
                    seen[number] = clients[number].step(turns[step].to_message())
                    heard[number].append(seen[number].observation["messages"])
        for number, (turns, said, session) in enumerate(wanted):
            assert heard[number] == said and session.outcome is not None
            assert seen[number].done and seen[number].reward == session.outcome.reward
            state = clients[number].state()
            assert (state["task"], state["step_count"]) == (world.tasks[number], len(turns))
            assert (state["judged"], state["stop"]) == (session.judged, session.outcome.stop)
    assert heard[0] != heard[1]


@needs_openenv
def test_a_bad_action_is_answered_and_the_session_lives_on(address: str, world: TableWorld) -> None:
    with connected(address) as client:
        assert "reset it first" in client.step(message(("look", {}))).observation["error"]
        client.reset(task=world.tasks[0])
        bad: Sequence[dict[str, Any]] = (
            {"move": 3},
            {"tool_calls": "look"},
            {"tool_calls": [{"name": "look"}]},
            {"content": 5},
        )
        for action in bad:
            found = client.step(action)
            assert found.observation["error"] and not found.observation["messages"]
            assert not found.done and found.reward is None
        unknown = client.step(message(("guess", {}), ("sketch", "{"))).observation
        errors = [json.loads(one["content"])["error"] for one in unknown["messages"]]
        assert errors[0].startswith("no tool 'guess'") and "not JSON" in errors[1]
        assert unknown["error"] == "" and client.state()["step_count"] == 1
        with pytest.raises(RuntimeError, match="no task 'nowhere' in this world"):
            client.reset(task="nowhere")
        assert client.reset(task=world.tasks[0]).observation["messages"]
        assert json.loads(client.step(message(("look", {}))).observation["messages"][0]["content"])[
            "ok"
        ]


@needs_openenv
def test_an_episode_ends_and_its_session_begins_another(address: str, world: TableWorld) -> None:
    with connected(address) as client:
        client.reset(split="test", index=0)
        assert client.state()["task"] == world.test_tasks[0]
        ended = client.step(message(("submit", {"reason": "enough"})))
        assert (ended.done, ended.reward, ended.observation["stop"]) == (True, -1.0, "gave_up")
        late = client.step(message(("look", {})))
        assert (
            late.done and json.loads(late.observation["messages"][0]["content"])["error"] == ENDED
        )
        drawn = [client.reset(seed=7).observation["messages"] for _ in range(2)]
        assert drawn[0] == drawn[1] and client.state()["task"] in world.tasks
        quiet = client.step({"content": "I do not know"})
        assert (quiet.done, quiet.reward, quiet.observation["messages"]) == (True, -1.0, [])


def admitted(address: str) -> bool:
    try:
        with connected(address) as client:
            return bool(client.reset(seed=1).observation["messages"])
    except RuntimeError:
        time.sleep(0.1)
        return False


@needs_openenv
def test_a_session_that_is_closed_makes_room_for_another(address: str) -> None:
    clients = [connected(address) for _ in range(SESSIONS)]
    try:
        for client in clients:
            assert client.reset(seed=1).observation["messages"]
        with (
            pytest.raises(RuntimeError, match="capacity"),
            connected(address) as one,
        ):
            one.reset(seed=1)
        clients.pop().close()
        assert any(admitted(address) for _ in range(100))  # it is closed a moment after it said so
    finally:
        for client in clients:
            client.close()


@needs_openenv
def test_the_server_says_what_it_takes_and_gives(address: str, world: TableWorld) -> None:
    def asked(path: str) -> Any:
        with urllib.request.urlopen(f"{address}/{path}", timeout=60) as answer:
            return json.load(answer)

    assert asked("health") == {"status": "healthy"}
    assert asked("metadata")["name"] == "cuda_agent"
    schema = asked("schema")
    assert {"content", "tool_calls", "truncated"} <= set(schema["action"]["properties"])
    assert schema["action"]["properties"]["tool_calls"]["type"] == "array"
    assert {"messages", "tools", "error", "done", "reward"} <= set(
        schema["observation"]["properties"]
    )


GOOD = {"function": {"name": "look", "arguments": {}}}


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ({"move": 1}, "no 'move'"),
        ({"role": "tool"}, "role 'assistant'"),
        ({"content": 5}, "content is text"),
        ({"truncated": "yes"}, "truncated is true or false"),
        ({"tool_calls": {"a": 1}}, "tool_calls is a list"),
        ({"tool_calls": [GOOD, 3]}, r"tool_calls\[1\]: it is not like"),
        ({"tool_calls": [{"function": {"name": 3}}]}, r"tool_calls\[0\]"),
    ],
)
def test_an_action_that_is_no_turn_is_refused_with_a_reason(
    action: dict[str, Any], said: str
) -> None:
    found = turn_of(action)
    assert isinstance(found, BadAction) and re.search(said, found.reason)


def test_an_action_is_a_message_as_the_agents_own_are() -> None:
    turn = Turn("a", (ToolCall.of("x", "sketch", schedule=[]), ToolCall("y", "look", "{")))
    assert turn_of(turn.to_message()) == turn
    assert turn_of({"content": None, "tool_calls": [GOOD], "truncated": True}, 4) == Turn(
        "", (ToolCall("call_4", "look", "{}"),), truncated=True
    )


def test_serving_without_its_extra_says_what_to_install(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert main(["serve-env", str(config)]) == 2
    assert 'pip install "cuda_agent[openenv]"' in capsys.readouterr().err


@needs_openenv
def test_an_address_that_is_taken_is_said_and_the_world_closed(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = ToyWorld()
    monkeypatch.setattr("trainer.stages.worlds.world_of", lambda settings: made)
    (tmp_path / "toy.toml").write_text("")
    port = address.rpartition(":")[2]
    assert main(["serve-env", str(tmp_path / "toy.toml"), "--port", port]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err and made.closed
