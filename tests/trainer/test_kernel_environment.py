"""The environment that others train in: the agent's own episodes, tools, messages and rewards, driven from outside."""

from __future__ import annotations

import inspect
import json
import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from toy_world import ToyTools, ToyWorld
from transformers.utils import get_json_schema
from world_kit import FILE, measured

from cuda_agent_backend.agent.loop import ENDED, NOT_RUN, Budget, EpisodeResult, run_episode
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.protocol import (
    CUT_OFF,
    OUT_OF_TIME,
    Message,
    Schema,
    Stopped,
    ToolCall,
    Turn,
)
from cuda_agent_backend.agent.tools.kernel_specs import KERNEL_SPECS
from trainer.environment.kernel_environment import KernelEnvironment
from trainer.environment.session import Outcome, Session
from trainer.rollout.held_out import HeldOut
from trainer.rollout.table_world import TableWorld
from trainer.rollout.world import Counted
from trainer.stages.config import WorldSettings
from trainer.stages.worlds import world_of

TRAINERS = {"reset", "get_reward"}


@cache
def table_world() -> TableWorld:
    return TableWorld(measured(), HeldOut(0.2), 64)


class Recording:
    """A policy whose turns are kept, as it gave them."""

    name = "recording"

    def __init__(self) -> None:
        self._policy, self.turns = SearchPolicy(), list[Turn | Stopped]()

    def act(self, messages: Sequence[Message], tools: Sequence[Schema]) -> Turn | Stopped:
        self.turns.append(self._policy.act(messages, tools))
        return self.turns[-1]


def searched(task: str, judgements: int, turns: int) -> tuple[EpisodeResult, list[Turn | Stopped]]:
    """An episode of the search as the trainer's own roll-out has it."""
    policy, tools = Recording(), Counted(table_world().tools(task, 5), judgements)
    budget = Budget(judgements - 0.5, turns)
    clock = lambda: float(tools.judgements)  # noqa: E731
    return run_episode(policy, tools, budget, clock=clock, first=tools.first()), policy.turns  # type: ignore[arg-type]


@dataclass
class Shell:
    """What an episode holds."""

    closed: int = 0

    def close(self) -> None:
        self.closed += 1


@dataclass
class HeldTools(ToyTools):
    """Tools with a shell; they raise what they are told to."""

    raises: BaseException | None = None

    def run(self, calls: Sequence[ToolCall]) -> list[Message]:
        if self.raises is not None:
            raise self.raises
        return super().run(calls)


@dataclass
class HeldWorld(ToyWorld):
    """Keeps the tools of its episodes in view."""

    raises: BaseException | None = None
    made: list[HeldTools] = field(default_factory=list)

    def tools(self, task: str, seed: int) -> HeldTools:
        super().tools(task, seed)
        self.made.append(HeldTools(int(task), raises=self.raises, shell=Shell()))
        return self.made[-1]

    @property
    def closed_shells(self) -> list[bool]:
        return [tools.shell.closed > 0 for tools in self.made]


def answer(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.splitlines()[0])
    return found


def won(environment: KernelEnvironment, columns: int = 256) -> None:
    """Submit the best schedule of the toy world."""
    team = ToyTools(columns).best_team
    made = answer(environment.sketch([{"sketch": "row", "team": team, "vector": 4}]))
    environment.profile(made["candidate"])
    assert answer(environment.submit(made["candidate"]))["reward"] == 3.0


def test_its_methods_are_the_agents_tools_and_none_besides() -> None:
    methods = inspect.getmembers(KernelEnvironment, inspect.isfunction)
    public = {name for name, _ in methods if not name.startswith("_")}
    assert public == {spec.name for spec in KERNEL_SPECS} | TRAINERS
    environment = KernelEnvironment(ToyWorld())
    for spec in KERNEL_SPECS:
        found = get_json_schema(getattr(environment, spec.name))["function"]
        assert (found["name"], found["description"]) == (spec.name, spec.description)
        parameters = found["parameters"]
        assert tuple(parameters.get("required", ())) == spec.required
        assert list(parameters["properties"]) == list(spec.properties)
        for name, wanted in spec.properties.items():
            told = parameters["properties"][name]
            assert (told["type"], told["description"]) == (wanted["type"], wanted["description"])
    schedule = get_json_schema(environment.sketch)["function"]["parameters"]["properties"]
    assert schedule["schedule"]["items"]["additionalProperties"]["type"] == ["integer", "string"]


@pytest.mark.parametrize(("judgements", "turns"), [(1, 24), (3, 24), (10, 24), (10, 4)])
def test_a_driven_episode_is_the_agents_own_message_for_message(
    judgements: int, turns: int
) -> None:
    said: list[str] = []
    for task in table_world().tasks:
        result, given = searched(task, judgements, turns)
        session = Session(table_world(), 99, turns)
        messages = session.start(task, 5, judgements)
        for turn in given:
            assert session.outcome is None
            messages += [turn.to_message()] if isinstance(turn, Turn) else []
            messages += session.take(turn)
        assert messages == result.trajectory
        assert session.outcome == Outcome(result.stop, result.reason, result.reward)
        said += [str(message["content"]) for message in messages if message["role"] == "user"]
    assert (OUT_OF_TIME in said) == (judgements < 10)
    assert any(text.startswith("No turn is left") for text in said) == (turns == 4)


def test_its_tools_answer_as_the_agents_do_and_the_reward_is_the_verdicts() -> None:
    rewards = []
    for task in table_world().tasks:
        result, _ = searched(task, 10, 99)
        environment = KernelEnvironment(table_world(), turns=99)
        first = environment.reset(task=task, seed=5, prompt="-", other=None)
        assert first == result.trajectory[0]["content"]
        calls = [c["function"] for m in result.trajectory for c in m.get("tool_calls", ())]
        answers = [m["content"] for m in result.trajectory if m["role"] == "tool"]
        for call, wanted in zip(calls, answers, strict=True):
            tool = getattr(environment, call["name"])
            assert tool(**json.loads(call["arguments"])).splitlines()[0] == wanted
        rewards.append(environment.get_reward())
        assert rewards[-1] == result.reward == environment.get_reward()
    assert {-1.0, 3.0} <= set(rewards)


def test_sketches_of_one_turn_count_their_own_seconds_only() -> None:
    task = max(table_world().tasks, key=lambda id: len(table_world().tables([id])[0].proposals))
    schedules = [json.loads(text) for text in table_world().tables([task])[0].proposals]
    calls = [ToolCall.of(str(n), "sketch", schedule=one) for n, one in enumerate(schedules * 20)]
    together, alone = (table_world().tools(task, 0) for _ in range(2))
    assert len(schedules) > 1
    assert together.run(calls) == [message for call in calls for message in alone.run([call])]


def test_wrong_arguments_are_answered_as_the_protocol_does() -> None:
    environment: Any = KernelEnvironment(table_world())
    environment.reset(table_world().tasks[0])
    for made, said in (
        (environment.sketch(), "sketch needs schedule"),
        (environment.sketch(team=3), "sketch has no argument 'team'; it takes: schedule"),
        (environment.sketch("fast"), "argument 'schedule' of sketch: must be of type array"),
        (environment.look(now=True), "look has no argument 'now'; it takes: none"),
        (environment.profile("c"), "no candidate 'c'; there are: none yet"),
    ):
        assert answer(made) == {"ok": False, "error": said}
    assert answer(environment.look())["ok"] is True


def test_when_the_time_is_up_the_policy_is_told_and_may_submit() -> None:
    environment = KernelEnvironment(ToyWorld())
    environment.reset("256", judgements=1)
    made = answer(environment.sketch([{"sketch": "row", "team": 256, "vector": 4}]))["candidate"]
    text, told = environment.profile(made).splitlines()
    assert json.loads(text)["ok"] and told == OUT_OF_TIME
    assert answer(environment.submit(made))["ok"] is False  # too slow; it may try once more
    assert answer(environment.submit(made))["reward"] == 1.0
    assert answer(environment.look()) == {"ok": False, "error": ENDED}
    assert environment.get_reward() == 1.0


def test_calls_of_the_turn_in_which_the_time_ended_are_not_run() -> None:
    session = Session(ToyWorld())
    session.start("256", judgements=1)
    sketch = ToolCall.of("s", "sketch", schedule=[{"sketch": "row", "team": 256, "vector": 4}])
    made = answer(session.take(Turn("", (sketch,)))[0]["content"])["candidate"]
    calls = [ToolCall.of(str(n), "profile", candidate=made) for n in range(2)]
    first, late, told = (m["content"] for m in session.take(Turn("", tuple(calls))))
    assert answer(first)["ok"] and answer(late)["error"] == NOT_RUN and told == OUT_OF_TIME
    assert session.judged == 1 and session.outcome is None


def test_what_was_cut_off_is_never_run() -> None:
    world = HeldWorld()
    session = Session(world)
    session.start("64")
    sketch = ToolCall.of("1", "sketch", schedule=[{"sketch": "row", "team": 32, "vector": 4}])
    assert session.take(Turn("", (sketch,), truncated=True)) == [
        {"role": "user", "content": CUT_OFF}
    ]
    assert not world.made[0].candidates and session.outcome is None


def test_an_episode_closes_what_it_holds_however_it_ends() -> None:
    world = HeldWorld()
    environment = KernelEnvironment(world)
    environment.reset("256")
    won(environment)
    assert world.closed_shells == [True]  # by its submission
    environment.reset("64")
    assert world.closed_shells == [True, False]
    assert environment.get_reward() == -1.0
    assert world.closed_shells == [True, True]  # by the trainer
    environment.reset("64")
    environment.reset("64")
    assert world.closed_shells == [True, True, True, False]  # by the next episode
    with environment:
        pass
    assert world.closed_shells == [True] * 4
    session = Session(world)
    session.start("64")
    session.close()
    session.close()
    assert session.outcome == Outcome("interrupted", "the episode was closed", None)
    assert world.made[-1].shell.closed == 1


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), KeyboardInterrupt("stop")])
def test_an_exception_ends_the_episode_closes_it_and_is_raised(error: BaseException) -> None:
    world = HeldWorld(raises=error)
    environment = KernelEnvironment(world)
    environment.reset("64")
    with pytest.raises(type(error), match=str(error)):
        environment.look()
    assert world.closed_shells == [True]
    assert answer(environment.look()) == {"ok": False, "error": ENDED}
    assert math.isnan(environment.get_reward())
    world.raises = None
    environment.reset("256")
    won(environment)
    assert environment.get_reward() == 3.0


def test_a_world_that_fails_is_an_episode_without_a_reward() -> None:
    world = HeldWorld(dies=frozenset({"64"}))
    environment = KernelEnvironment(world)
    assert environment.reset("64") == "the environment of 64 died"
    assert answer(environment.look()) == {"ok": False, "error": ENDED}
    assert math.isnan(environment.get_reward())
    world.raises = OSError("no space left")
    environment.reset("128")
    assert answer(environment.look()) == {"ok": False, "error": "no space left"}
    assert math.isnan(environment.get_reward()) and world.closed_shells == [True]


def test_what_cannot_be_played_is_refused() -> None:
    environment = KernelEnvironment(ToyWorld())
    with pytest.raises(RuntimeError, match="no episode was begun"):
        environment.look()
    with pytest.raises(RuntimeError, match="no episode was begun"):
        environment.get_reward()
    with pytest.raises(ValueError, match="no task '65' in this world; it has 8, such as 64, 128"):
        environment.reset("65")
    with pytest.raises(ValueError, match="0 judgements"):
        environment.reset("64", judgements=0)
    with pytest.raises(ValueError, match="at least 1"):
        KernelEnvironment(ToyWorld(), judgements=0)


def test_environments_side_by_side_on_one_world_do_not_disturb_each_other() -> None:
    tasks = [*table_world().tasks] * 2

    def played(task: str) -> tuple[list[str], float]:
        environment = KernelEnvironment(table_world())
        found = [str(environment.reset(task, seed=1)), environment.look()]
        for schedule in answer(found[1])["schedules"]:
            made = environment.sketch(schedule)
            found += [made, environment.profile(answer(made).get("candidate", ""))]
        return found, environment.get_reward()

    alone = [played(task) for task in tasks]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(played, tasks)) == alone


def test_closing_waits_for_the_call_that_runs() -> None:
    running, go_on = threading.Event(), threading.Event()

    class Slow(HeldTools):
        def run(self, calls: Sequence[ToolCall]) -> list[Message]:
            running.set()
            assert go_on.wait(60) and not self.shell.closed
            return super().run(calls)

    class SlowWorld(HeldWorld):
        def tools(self, task: str, seed: int) -> HeldTools:
            self.made.append(Slow(int(task), shell=Shell()))
            return self.made[-1]

    world = SlowWorld()
    session = Session(world)
    session.start("64")
    with ThreadPoolExecutor(2) as pool:
        answered = pool.submit(session.take, Turn("", (ToolCall.of("1", "look"),)))
        assert running.wait(60)
        closed = pool.submit(session.close)
        go_on.set()
        assert len(answered.result()) == 1
        closed.result()
    assert world.closed_shells == [True] and session.outcome is not None


@pytest.mark.slow
def test_it_stands_on_the_judge_as_on_tables() -> None:
    """A kernel that is compiled, checked and judged on this processor; on a busy one a verdict may say nothing.

    Of the task as it stands: it rounds as eager does, whatever is drawn.
    """
    world = world_of(WorldSettings("judge", paths=(str(FILE),), held_out=0.0, side_by_side=1))
    try:
        with KernelEnvironment(world) as environment:
            environment.reset(world.tasks[0], judgements=1)
            seen = answer(environment.look())
            assert seen["ok"] and seen["eager_us"] > 0
            as_it_stands = next(s for s in seen["schedules"] if "rewrite" not in s[0])
            made = answer(environment.sketch(as_it_stands))
            assert made["ok"] and answer(environment.inspect(made["candidate"]))["ok"]
            judged = answer(environment.submit(made["candidate"]))
            reward = environment.get_reward()
    finally:
        world.close()
    assert judged["status"] in ("wins", "too_slow", "noisy")
    if judged["reward"] is None:
        assert judged["status"] == "noisy" and math.isnan(reward)
    else:
        assert reward == judged["reward"] and reward in (1.0, 2.0, 3.0)
