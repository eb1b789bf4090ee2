"""Choosing a policy: by option, by argument, and what is said where that cannot be."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import episode_kit as kit
import pytest
from test_tools import TASK, Scripted

from cuda_agent_backend.agent.conversation import CUT_OFF
from cuda_agent_backend.agent.loop import Budget, run_episode
from cuda_agent_backend.agent.policies import registry
from cuda_agent_backend.agent.policies.registry import POLICIES, make_policy
from cuda_agent_backend.agent.policies.replay import ReplayPolicy, _renamed
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.policies.spec import (
    NAMES,
    Limits,
    PolicySpec,
    Sampling,
    with_options,
)
from cuda_agent_backend.agent.protocol import ToolCall, Turn
from cuda_agent_backend.agent.tools.toolbox import Toolbox
from cuda_agent_backend.agent.trajectories.file import Recorder
from cuda_agent_backend.cli import bench as bench_command
from cuda_agent_backend.cli import command as cli
from cuda_agent_backend.cli import policy_arguments
from cuda_agent_backend.options import OptionError, parse
from cuda_agent_backend.search.setup import Setup
from cuda_agent_backend.settings import Settings

SETTINGS = Settings(Path("/kernels"), Path("/native"))
OPENAI = {"cuda_agent.policy": "openai", "cuda_agent.model": "m"}


def test_without_a_wish_the_policy_is_the_search() -> None:
    assert isinstance(make_policy(parse(SETTINGS).policy_spec), SearchPolicy)


def test_a_policy_reaches_the_search_process_as_it_was_wished_for() -> None:
    more = {"cuda_agent.policy_options": {"top_p": 0.5, "retries": 2}}
    options = parse(SETTINGS, None, {**OPENAI, "cuda_agent.base_url": "http://h:1/v1", **more})
    sent = json.loads(json.dumps(Setup.of(options).to_json()))
    spec = Setup.from_json(sent).policy
    assert spec == PolicySpec(
        "openai", "m", "http://h:1/v1", Sampling(top_p=0.5), Limits(retries=2)
    )
    assert spec == options.policy_spec and spec.label == "openai:m"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"policy": "opnai"}, "no policy is called 'opnai'; there are: search, bayesian, openai"),
        ({"policy": "openai"}, "needs a model"),
        ({"policy": "replay"}, "needs a model: the file to play"),
        ({"base_url": "http://h/v1"}, "has no use for a base URL"),
        ({"model": "m"}, "the policy 'search' has no use for a model"),
        ({"policy_options": {"max_cost": 2.0}}, "'search' has no use for sampling or limits"),
        (
            {"policy": "search+replay", "model": "f", "policy_options": {"temperature": 0}},
            "has no use for sampling or limits",
        ),
        ({"policy_options": {"warmth": 1}}, "there is no 'warmth'; there are: temperature"),
        ({"policy_options": {"temperature": "hot"}}, "temperature='hot' is not a number"),
        ({"policy_options": {"retries": 1.5}}, "retries=1.5 is not a whole number"),
        ({"policy_options": {"seed": True}}, "seed=True is not a whole number"),
        ({"policy_options": {"top_p": 0}}, "top_p=0 is not above 0"),
        ({"policy_options": {"max_cost": -1}}, "max_cost=-1 is out of range"),
        ({"policy_options": {"price_in": 10**400}}, "is out of range"),
        ({"policy_options": {"timeout_s": float("nan")}}, "timeout_s=nan is out of range"),
        ({"policy_options": [1]}, "is not a dictionary"),
    ],
)
def test_a_policy_that_cannot_be_is_an_error_at_once(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=re.escape(said)):
        parse(SETTINGS, None, {f"cuda_agent.{name}": value for name, value in given.items()})


@pytest.mark.parametrize(
    "url", ["localhost:8000", "file:///x", "http://", "http://u:p@h/v1", "http://h:x", "http://h?k=1"]
)  # fmt: skip
def test_a_base_url_is_a_plain_one(url: str) -> None:
    with pytest.raises(OptionError, match="the base URL"):
        parse(SETTINGS, None, {**OPENAI, "cuda_agent.base_url": url})


def test_what_is_not_installed_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match=re.escape("openai: pip install 'cuda_agent[llm]'")):
        parse(SETTINGS, None, OPENAI)
    assert parse(SETTINGS, None, OPENAI | {"cuda_agent.search": "cached"}).policy == "openai"
    with pytest.raises(ImportError, match="cuda_agent"):
        make_policy(PolicySpec("openai", "m"))


@pytest.mark.parametrize("command", [["warm", "a.py:f"], ["bench", "tasks"]])
def test_commands_take_a_policy(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--policy", "openai", "--model", "m", "--base-url", "http://h/v1"]
    args = cli.parser().parse_args([*command, *words, "--policy-option", "temperature=0.5"])
    assert (args.policy, args.policy_model, args.policy_option) == (
        "openai",
        "m",
        [("temperature", 0.5)],
    )
    assert cli.main([*command, "--policy", "nobody"]) == cli.USAGE
    assert "no policy is called 'nobody'" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["warm", "a.py:f"], ["bench", "tasks"]])
def test_consent_and_memory_are_arguments_too(command: list[str]) -> None:
    plain = policy_arguments.options(cli.parser().parse_args(command))
    assert parse(SETTINGS, None, plain) == parse(SETTINGS)
    args = cli.parser().parse_args([*command, "--allow-policy-cpp", "--no-memory"])
    given = policy_arguments.options(args)
    made = parse(SETTINGS, None, given)
    assert made.allow_policy_cpp is True and made.memory is False
    if command[0] == "bench":
        wishes = bench_command.wishes_of(args)
        assert wishes.policy == given, "another wish makes another result"


def test_every_policy_of_the_registry_has_its_module() -> None:
    for kind in POLICIES.values():
        assert find_spec(f"{registry.__package__}.{kind.module}") is not None, kind.module
    assert find_spec(f"{registry.__package__}.{registry.MIXED}") is not None


def test_every_option_of_policies_is_in_the_documents() -> None:
    text = (Path(__file__).parents[2] / "docs/policies.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^`]+)`|none) \|", text, re.MULTILINE)
    documented = {name: default for name, default in rows if name in NAMES}
    defaults = {f.name: f.default for f in (*fields(Sampling), *fields(Limits))}
    assert documented == {n: "" if d is None else str(d) for n, d in defaults.items()}
    for name in POLICIES:
        assert f"\n| `{name}` |" in text


def test_every_name_of_an_option_goes_to_its_place() -> None:
    found = with_options("search", "", "", dict.fromkeys(NAMES, 1))
    assert found == PolicySpec(
        sampling=Sampling(*[1] * len(fields(Sampling))), limits=Limits(*[1] * len(fields(Limits)))
    )


def recorded() -> list[dict[str, Any]]:
    """The conversation of a search that wins."""
    return list(run_episode(SearchPolicy(), Toolbox(TASK, Scripted()), Budget(1e9)).trajectory)


def test_a_replay_does_what_was_done(tmp_path: Path) -> None:
    messages = recorded()
    path = tmp_path / "episode.jsonl"
    path.write_text("".join(json.dumps(m) + "\n" for m in messages) + '{"role": "assis')
    policy = make_policy(PolicySpec("replay", str(path)))
    found = run_episode(policy, Toolbox(TASK, Scripted()), Budget(1e9))
    assert found.best is not None and len(found.trajectory) == len(messages)


def test_a_replay_takes_the_events_of_a_trajectory(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [{"kind": "header", "task": "x"}]
    for message in recorded():
        calls = [
            {"id": c["id"], "name": c["function"]["name"], "arguments": c["function"]["arguments"]}
            for c in message.get("tool_calls", ())
        ]
        lines.append({
            "assistant": {"kind": "acted", "content": message["content"], "calls": calls},
            "tool": {"kind": "answered", "messages": [message]},
            "user": {"kind": "said", "message": message},
        }[message["role"]])  # fmt: skip
    path = tmp_path / "episode.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    policy = make_policy(PolicySpec("replay", str(path)))
    assert run_episode(policy, Toolbox(TASK, Scripted()), Budget(1e9)).best is not None


def test_a_replay_calls_candidates_by_the_names_that_they_have_now() -> None:
    messages = json.loads(
        re.sub(r'(candidate[\\": ]+)[0-9a-f]{12}', r"\1old", json.dumps(recorded()))
    )
    names = {json.loads(m["content"]).get("candidate") for m in messages if m["role"] == "tool"}
    assert "old" in names
    found = run_episode(ReplayPolicy(messages), Toolbox(TASK, Scripted()), Budget(1e9))
    assert found.best is not None


def test_a_replay_runs_no_call_of_a_turn_that_was_cut_off(tmp_path: Path) -> None:
    path, tools = tmp_path / "episode.jsonl", kit.Tools()
    with Recorder.create(path, kit.header()) as record:
        was = run_episode(kit.Script(kit.winning()), tools, Budget(1e9), record=record)
    again = kit.Tools()
    found = run_episode(make_policy(PolicySpec("replay", str(path))), again, Budget(1e9))
    assert again.done == tools.done
    assert kit.said(found.trajectory) == kit.said(was.trajectory)
    assert found.best is not None and CUT_OFF in [m["content"] for m in found.trajectory]


def test_a_replay_goes_on_after_a_cut_off_turn_without_calls() -> None:
    policy = ReplayPolicy([{"role": "assistant", "content": "half a th", "truncated": True}])
    found = policy.act([{"role": "user", "content": "x"}], [])
    assert isinstance(found, Turn) and found.truncated


def test_a_renamed_call_keeps_arguments_that_are_called_as_our_own() -> None:
    call = ToolCall("1", "submit", '{"candidate": "old", "id": 7, "name": "x"}')
    made = _renamed(call, {"old": "new"})
    assert (made.id, made.name) == ("1", "submit")
    assert json.loads(made.arguments) == {"candidate": "new", "id": 7, "name": "x"}


@pytest.mark.parametrize(
    "line", ['{"messages": [{}]}', '{"messages": [{"role": 3}, 5]}', '{"role": "tool"}', "[]", "7"]
)
def test_a_line_that_is_no_message_is_passed_by(line: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(line + '\n{"role": "assistant", "content": "hello"}\n')
    found = make_policy(PolicySpec("replay", str(path))).act([], [])
    assert isinstance(found, Turn) and found.content == "hello"


def test_a_replay_that_is_at_its_end_says_so() -> None:
    said = [(m, json.dumps(m)) for m in recorded()]
    messages = [m for m, text in said if "submit" not in text and "profile" not in text]
    found = run_episode(ReplayPolicy(messages), Toolbox(TASK, Scripted()), Budget(1e9))
    assert found.best is None and found.reason == "the recording is at its end"


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"role": "user", "content": "x"}', "\x00"])
def test_a_file_that_cannot_be_played_is_said(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ImportError, match="cannot be played"):
        make_policy(PolicySpec("replay", str(path)))
    with pytest.raises(ImportError, match="cannot be played"):
        make_policy(PolicySpec("replay", "a\0b"))


def test_what_one_policy_failed_at_another_may_search(tmp_path: Path) -> None:
    import time

    import splice_kit as kit
    from test_service import EXP, options, tasks_of

    from cuda_agent_backend.runtime.kernels import Kernels, NoKernel
    from cuda_agent_backend.runtime.machine import key_of
    from kernel_cache import NegativeRecord

    (task,) = tasks_of((EXP,))
    key, cache, now = key_of(task), kit.cache_of(options(tmp_path)), time.time()
    cache.put_negative(NegativeRecord(key, "search", {}, "no sketch covers it", now, now + 1e3))
    kernels = Kernels(cache)
    for policy, searchable in (("search", False), ("", False), ("openai:m", True)):
        found = kernels.find(key, policy=policy)
        assert isinstance(found, NoKernel) and found.searchable is searchable


def test_a_search_that_was_cut_short_is_done_again_with_a_budget_four_times_as_large(
    tmp_path: Path,
) -> None:
    import splice_kit as splicing
    from test_service import EXP, options, tasks_of

    from cuda_agent_backend.runtime.kernels import Kernels, NoKernel
    from cuda_agent_backend.runtime.machine import key_of
    from cuda_agent_backend.search.outcome import NothingFound
    from cuda_agent_backend.search.promotion import keep

    (task,) = tasks_of((EXP,))
    key, cache = key_of(task), splicing.cache_of(options(tmp_path))
    for exhausted, graph_s, again in (
        (False, 100.0, [400.0, 3600.0]),
        (True, 100.0, []),
        (False, None, []),
    ):
        found = NothingFound("nothing wins", exhausted, 3)
        keep(cache, key, task, found, "search", 20.0, graph_s)
        for budget in (0.0, 20.0, 100.0, 399.0, 400.0, 3600.0):
            known = Kernels(cache).find(key, policy="search", budget_s=budget)
            assert isinstance(known, NoKernel) and known.negative
            assert known.searchable is (budget in again)


def test_the_search_process_has_a_served_model_work_on_a_task(tmp_path: Path) -> None:
    from endpoint_kit import call, endpoint, said

    from cuda_agent_backend.search.episode import run_agent
    from cuda_agent_backend.search.outcome import NothingFound

    class AtRest(Scripted):
        waited_s = 0.0

    with endpoint(said("", [call("look")], "tool_calls"), said("I give up.")) as server:
        setup = Setup(tmp_path / "k", tmp_path / "n", {}, PolicySpec("openai", "m", server.url))
        found = run_agent(TASK, AtRest(), setup, 600.0, None, lambda text: None)
    assert isinstance(found, NothingFound) and found.reason == "I give up."
    assert found.turns == 2 and len(server.asked) == 2
    names = {tool["function"]["name"] for tool in server.asked[0]["tools"]}
    assert {"look", "sketch", "submit"} <= names
    assert server.asked[1]["messages"][-1]["role"] == "tool"
