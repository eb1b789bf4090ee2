"""Rolling out: lock-step, budgets, samples whose ids are those that were sampled, and the filters of fine-tuning."""

from __future__ import annotations

import json
import queue
import random
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from toy_world import ToyTools, ToyWorld

from cuda_agent_backend.agent.policies.engine import EngineFailed, Sampled
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.policies.trained.sampler import Request, Sampler
from cuda_agent_backend.agent.policies.trained.speech import Speech
from cuda_agent_backend.agent.protocol import CUT_OFF, Message, ToolCall
from trainer.policy.model import Size, actor_of, config_of, critic_of
from trainer.ppo.episode import Episode
from trainer.ppo.prepare import Estimates, prepare
from trainer.ppo.ranks import Alone
from trainer.rivals.registry import RIVALS as ARENA
from trainer.rollout.demonstrations import chance_policy, demonstrations
from trainer.rollout.episodes import (
    Plan,
    Play,
    Played,
    Watch,
    best_speed,
    play_each,
    played,
    rewarded,
    roll_out,
)
from trainer.rollout.filters import RULES, filtered, why_dropped
from trainer.rollout.held_out import HeldOut, of_card
from trainer.rollout.judge_world import JudgeWorld
from trainer.rollout.lockstep import Lockstep
from trainer.rollout.rival_policy import Tutors
from trainer.rollout.table_world import LEAST, TableWorld
from trainer.rollout.world import Counted, WorldFailed, family_in
from trainer.stages.config import BadConfig, WorldSettings
from trainer.stages.worlds import world_of
from trainer.world.files import read
from trainer.world.replay_tools import NOT_MEASURED, ReplayTools

SPEECH = Speech()
TABLES = Path(__file__).parent / "data" / "cpu-tables.parquet"
TINY = Size(hidden=32, layers=2, heads=2, key_heads=1, head=16, inner=64, window=1024)


def actor(seed: int = 0) -> Any:
    ids = SPEECH.words.ids
    return actor_of(config_of(TINY, len(ids), ids["<end>"], ids["<pad>"]), seed)


def plans(count: int = 6, judgements: int = 3) -> list[Plan]:
    return [Plan(str(64 << n % 4), f"plan {n}", judgements) for n in range(count)]


def test_a_batch_goes_when_every_episode_that_goes_on_has_asked() -> None:
    batches: list[list[int]] = []

    def generate(requests: Any) -> list[Sampled]:
        batches.append([r.key for r in requests])
        return [Sampled((r.key,), (0.0,), True) for r in requests]

    lockstep = Lockstep(generate, range(3))
    said: dict[int, list[Any]] = {n: [] for n in range(3)}

    def one(key: int, turns: int) -> None:
        for _ in range(turns):
            said[key].append(lockstep.ask(Request(key, [1], "")))
        lockstep.leave(key)

    threads = [threading.Thread(target=one, args=(n, n + 1)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert batches == [[0, 1, 2], [1, 2], [2]]
    assert [a.ids for a in said[2]] == [(2,)] * 3


def test_a_model_that_fails_ends_every_episode_as_infrastructure() -> None:
    class Broken(Sampler):
        def session(self) -> Any:
            class Session:
                def generate(self, requests: Any) -> Any:
                    raise RuntimeError("out of memory")

            return Session()

    found = roll_out(plans(2), ToyWorld(), Broken(actor(), SPEECH), Play())
    assert [p.episode.end for p in found] == ["infrastructure"] * 2
    assert not any(p.episode.counts for p in found)

    def full(requests: Any) -> list[Sampled]:
        raise MemoryError

    assert isinstance(Lockstep(full, [0]).ask(Request(0, [1], "")), EngineFailed)


@pytest.mark.parametrize("error", [IndexError("no such row"), KeyError(7), TypeError("none"), None])
def test_whatever_becomes_of_a_batch_everyone_who_waits_is_answered(
    error: Exception | None,
) -> None:
    """An error that ended one episode alone left the others waiting."""

    def generate(requests: Any) -> list[Sampled]:
        if error is not None:
            raise error
        return [Sampled((1,), (0.0,), True)]  # one too few

    lockstep = Lockstep(generate, range(2))
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def one(key: int) -> None:
        try:
            answers.put(lockstep.ask(Request(key, [1], "")))
        except Exception as raised:
            answers.put(raised)

    for key in range(2):
        threading.Thread(target=one, args=(key,), daemon=True).start()
    first, second = (answers.get(timeout=60.0) for _ in range(2))
    assert isinstance(first, EngineFailed) and first is second
    said = "1 answers to 2 requests" if error is None else f"{type(error).__name__}: {error}"
    assert said in first.reason


def test_episodes_are_the_same_when_they_are_played_again_and_learn_what_the_engine_saw() -> None:
    model = actor(1)
    first, again = (roll_out(plans(), ToyWorld(), Sampler(model, SPEECH), Play()) for _ in range(2))
    assert [p.episode for p in first] == [p.episode for p in again]
    assert any(len(p.episode.samples[0].ids) > 100 for p in first)
    for one in first:
        (sample,) = one.episode.samples
        grammar = SPEECH.grammar()
        for id, spoken in zip(sample.ids, sample.spoken, strict=True):
            assert grammar.speaking == spoken
            grammar.feed([id])
    ready = prepare([p.episode for p in first], model, critic_of(model), Estimates(), Alone())
    assert ready.figures["engine_gap"] < 1e-3 and ready.figures["mismatched"] == 0.0


def test_time_is_counted_in_judgements_and_the_policy_is_told_how_many() -> None:
    tools = Counted(ToyTools(), 3)
    assert tools.first()[0]["content"].startswith("Budget: 3 judgements.\n")
    assert Counted(ToyTools(), 1).first()[0]["content"].startswith("Budget: 1 judgement.\n")
    look = tools.run([ToolCall.of("1", "look")])
    schedules = json.loads(look[0]["content"])["schedules"]
    (made,) = tools.run([ToolCall.of("2", "sketch", schedule=schedules[0])])
    assert tools.judgements == 0
    name = json.loads(made["content"])["candidate"]
    tools.run([ToolCall.of("3", "profile", candidate=name)])
    tools.run([ToolCall.of("4", "submit", candidate=name)])
    assert tools.judgements == 1
    tools.run([ToolCall.of("5", "sketch", schedule=[{"sketch": "row", "team": 512}])])
    assert tools.judgements == 2 and tools.failures == 1
    unseen = Counted(ToyTools(), 3)
    (made,) = unseen.run([ToolCall.of("2", "sketch", schedule=schedules[0])])
    unseen.run([ToolCall.of("4", "submit", candidate=json.loads(made["content"])["candidate"])])
    assert unseen.judgements == 1
    unseen.run([ToolCall.of("6", "submit", reason="no")])
    assert unseen.judgements == 1


def test_a_schedule_that_no_table_has_is_no_judgement() -> None:
    table = read([TABLES])[0]
    tools = Counted(ReplayTools.of(table), 3)
    (look,) = tools.run([ToolCall.of("1", "look")])
    known = {text for row in table.rows for text in row.schedules}
    known |= {one.schedule for one in table.refused}
    first = json.loads(look["content"])["schedules"][0]
    other = [{**kernel, "unheard": 77} for kernel in first]
    assert json.dumps(other, sort_keys=True) not in known
    (answer,) = tools.run([ToolCall.of("2", "sketch", schedule=other)])
    assert NOT_MEASURED in str(answer["content"]) and tools.judgements == 0


def test_an_episode_ends_with_its_budget() -> None:
    search = SearchPolicy()
    plan = Plan("64", "0", 1)
    one = played(search, plan, ToyWorld(), Play(), SPEECH)
    assert one.episode.notes["judgements"] == 1
    assert any("time is up" in str(m["content"]) for m in one.messages)


def test_one_answer_a_task_is_judged_as_it_is() -> None:
    found = roll_out(plans(24), ToyWorld(), Sampler(actor(2), SPEECH), Play(single=True))
    rewards = {p.episode.reward for p in found}
    assert rewards <= {-1.0, 1.0, 3.0} and len(rewards) > 1
    for one in found:
        assert one.episode.turns == 1
        (sample,) = one.episode.samples
        said = SPEECH.words.words[
            next(i for i, s in zip(sample.ids, sample.spoken, strict=True) if s)
        ]
        assert said in ("<sketch>", "<look>", "<give_up>")
        made = any("candidate" in m["content"] for m in one.messages if m["role"] == "tool")
        assert (one.episode.reward == -1.0) == (not made)


def test_an_environment_that_dies_costs_its_own_episodes_only() -> None:
    world = ToyWorld(dies=frozenset(["128"]))
    found = roll_out(plans(), world, Sampler(actor(), SPEECH), Play())
    assert [p.episode.end == "infrastructure" for p in found] == [p.task == "128" for p in plans()]
    assert "died" in found[1].messages[0]["content"]


def searching(plan: Plan) -> SearchPolicy:
    return SearchPolicy(judgements=plan.judgements)


def test_policies_that_share_no_model_play_side_by_side() -> None:
    together = threading.Barrier(3)

    class Crowded(ToyWorld):
        def tools(self, task: str, seed: int) -> ToyTools:
            together.wait(60.0)
            return super().tools(task, seed)

    told: list[Plan] = []
    watch = Watch(lambda plan, one: told.append(plan))
    play_each(plans(6), Crowded(), searching, Play(), watch, jobs=3)
    assert sorted(p.seed for p in told) == sorted(p.seed for p in plans(6))


def test_no_further_episode_begins_once_who_looks_on_says_so() -> None:
    told: list[Plan] = []
    watch = Watch(lambda plan, one: told.append(plan), lambda: len(told) < 2)
    play_each(plans(6), ToyWorld(), searching, Play(), watch, jobs=1)
    assert told == plans(6)[:2]
    told.clear()
    found = roll_out(plans(6), ToyWorld(side_by_side=2), Sampler(actor(), SPEECH), Play(), watch)
    assert len(found) == 2 and {p.seed for p in told} == {p.seed for p in plans(6)[:2]}


def test_what_who_looks_on_raises_ends_the_rest() -> None:
    told: list[Plan] = []

    def full(plan: Plan, one: Played) -> None:
        told.append(plan)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        play_each(plans(6), ToyWorld(), searching, Play(), Watch(full), jobs=1)
    assert len(told) == 1
    with pytest.raises(OSError, match="no space left"):
        roll_out(plans(2), ToyWorld(), Sampler(actor(), SPEECH), Play(), Watch(full))


def test_an_episode_takes_the_seconds_that_its_tools_work() -> None:
    world = world_of(WorldSettings(paths=(str(TABLES),)))
    one = played(SearchPolicy(judgements=3), Plan(world.tasks[0], "0", 3), world, Play())
    said = [json.loads(m["content"]) for m in one.messages if m["role"] == "tool"]
    assert one.seconds == pytest.approx(sum(answer["seconds"] for answer in said), abs=0.05)
    assert one.seconds > 0 and one.reason


def test_rivals_are_read_in_the_policys_words() -> None:
    for make in (
        lambda plan: SearchPolicy(judgements=plan.judgements),
        lambda plan: chance_policy(SPEECH, plan.seed),
    ):
        found = demonstrations(plans(4, 10), ToyWorld(), SPEECH, Play(), make)
        assert len(found) == 4 and all(any(s.spoken) and not s.logprobs for s in found)
        assert all(
            id in allowed
            for s in found
            for id, allowed in zip([s.ids[n] for n in s.actions], s.allowed, strict=True)
        )


def test_measured_tables_answer_as_the_tools_do_and_families_are_held_out(tmp_path: Path) -> None:
    world = world_of(WorldSettings(paths=(str(TABLES),)))
    tables = {table.id: table for table in read([TABLES])}
    sides = [{tables[id].family for id in ids} for ids in (world.tasks, world.test_tasks)]
    assert all(sides) and not sides[0] & sides[1]
    plans = [Plan(id, f"t{n}", 3) for n, id in enumerate((*world.tasks, *world.test_tasks))]
    found = roll_out(plans, world, Sampler(actor(1), SPEECH), Play())
    assert len(found) == len(plans) and all(one.episode.counts for one in found)
    searched = [
        played(SearchPolicy(), replace(p, judgements=10), world, Play(), SPEECH) for p in plans
    ]
    assert sum(one.episode.reward == 3.0 for one in searched) >= 5
    assert all(SPEECH.encoded(one.messages) is not None for one in searched)
    world.close()


def test_a_family_is_held_out_of_every_set_or_of_none() -> None:
    names = [f"family {n}" for n in range(200)]
    held = HeldOut(0.2).families(names)
    assert 20 <= len(held) <= 60
    for some in (names[::2], names[:30], [*names, "another"]):
        assert HeldOut(0.2).families(some) - {"another"} == held & set(some)
    assert HeldOut(1e-9).families(["one", "two"]) and not HeldOut(0.0).families(names)
    assert HeldOut(1.0).families(names) == set(names) and not HeldOut(0.2).families([])


def test_each_family_is_held_out_by_one_of_the_parts() -> None:
    names = [f"family {n}" for n in range(200)]
    parts = [HeldOut(0.2, part).families(names) for part in range(5)]
    assert sum(map(len, parts)) == len(names) and frozenset().union(*parts) == set(names)
    assert all(20 <= len(part) <= 60 for part in parts)
    for share, part in ((0.2, 5), (0.2, -1), (1.5, 0), (-0.1, 0), (1.0, 1)):
        with pytest.raises(ValueError, match="no part"):
            HeldOut(share, part)


def test_a_card_says_what_a_policy_was_kept_from() -> None:
    assert of_card(HeldOut(0.2, 3).to_card()) == HeldOut(0.2, 3)
    assert of_card({"held_out": 0.2}) == HeldOut(0.2), "as cards said it before there were parts"
    for card in ({}, {"held_out": 0.0}, {"held_out": "0.2"}, {"held_out": 0.2, "held_out_part": 9}):
        assert of_card(card) is None


def test_worlds_that_cannot_be_had_are_refused(tmp_path: Path) -> None:
    (tmp_path / "no.parquet").write_text("no")
    for settings, said in (
        (WorldSettings(), "paths names no files"),
        (WorldSettings(paths=(str(tmp_path / "none.parquet"),)), "no tables at"),
        (WorldSettings(paths=(str(tmp_path / "no.parquet"),)), "holds no tables"),
        (WorldSettings(paths=(str(TABLES),), held_out=1.0), "too few or too much alike"),
        (WorldSettings(paths=(str(TABLES),), held_out_part=5), "no part 5"),
        (WorldSettings("judge", paths=(str(TABLES),), device="cuda"), "not for device 'cuda'"),
        (WorldSettings("judge", paths=(str(TABLES),), held_out=1.0), "no task is left to train"),
        (WorldSettings("factory", factory="nowhere:make"), "cannot be had"),
    ):
        with pytest.raises(BadConfig, match=said):
            world_of(settings)


def test_a_world_for_evaluation_alone_may_have_all_of_its_tasks_held_out() -> None:
    tables = read([TABLES])
    playable = [t for t in tables if sum(row.works for row in t.rows) >= LEAST]
    for kind, played_in in (("tables", playable), ("judge", tables)):
        settings = WorldSettings(kind, paths=(str(TABLES),), held_out=1.0)  # type: ignore[arg-type]
        world = world_of(settings, training=False)
        assert not world.tasks and len(world.test_tasks) == len(played_in)
        found = {family_in(world, task) for task in world.test_tasks}
        assert found == {table.family for table in played_in}
        world.close()
    assert family_in(ToyWorld(), "64") == "64"  # a world that says nothing of families


def test_a_judge_that_cannot_be_on_this_machine_is_started_for_training_or_an_episode_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    world = JudgeWorld("cuda", {}, {"a": read([TABLES])[0].parsed}, 1)
    assert family_in(world, "a") == read([TABLES])[0].family
    with pytest.raises(WorldFailed, match="torch sees no CUDA device here"):
        world.open()
    one = played(SearchPolicy(), Plan("a", "0", 1), world, Play())
    assert one.episode.end == "infrastructure" and "no CUDA device" in one.reason
    world.close()


@pytest.mark.slow
def test_the_judge_answers_in_its_world(tmp_path: Path) -> None:
    """A real kernel for this processor, compiled, timed and judged as the model's one answer."""
    world = world_of(WorldSettings("judge", paths=(str(TABLES),), held_out=0.0, side_by_side=1))
    task = next(id for id in world.tasks)
    try:
        found = [
            played(SearchPolicy(judgements=1), Plan(task, "0", 1), world, Play(), SPEECH),
            *roll_out([Plan(task, "1", 1)], world, Sampler(actor(1), SPEECH), Play(single=True)),
        ]
    finally:
        world.close()
    assert all(one.episode.end != "infrastructure" for one in found)
    for (
        one
    ) in found:  # on a machine that is busy a verdict says nothing, and the episode does not count
        noisy = any('"noisy"' in str(message["content"]) for message in one.messages)
        assert one.episode.reward in (-1.0, 1.0, 2.0, 3.0) or (noisy and not one.episode.counts)
    assert found[0].episode.notes["judgements"] >= 1


def test_raw_speed_up_as_reward_is_the_ablations() -> None:
    class Timed(ToyWorld):
        def tools(self, task: str, seed: int) -> ToyTools:
            made = ToyTools(int(task))
            made.timed = True
            return made

    plan = Plan("64", "3", 10)
    for reward, want in (("outcome", 3.0), ("speedup", 1.5)):
        one = played(SearchPolicy(), plan, Timed(), Play(reward=reward), SPEECH)  # type: ignore[arg-type]
        assert one.episode.reward == want


@pytest.mark.parametrize(
    ("kind", "outcome", "speed", "best", "want"),
    [
        ("outcome", 3.0, 1.2, 2.4, 3.0),
        ("graded", 3.0, 1.2, 2.4, 2.5),
        ("graded", 3.0, 2.5, 2.4, 3.0),
        ("graded", 3.0, 1.2, 0.0, 3.0),
        ("graded", 1.0, 0.9, 2.4, 0.375),
        ("graded", 1.0, 2.4, 2.4, 1.0),
        ("graded", 2.0, 1.2, 2.4, 1.5),
        ("graded", 1.0, 0.9, 0.0, 1.0),
        ("graded", -1.0, 0.0, 2.4, -1.0),
        ("graded", None, 0.0, 2.4, None),
        ("speedup", 1.0, 0.9, 2.4, 0.9),
        ("speedup", -1.0, 0.0, 2.4, -1.0),
    ],
)
def test_what_is_right_is_worth_its_share_of_the_best_where_rewards_are_graded(
    kind: Any, outcome: float | None, speed: float, best: float, want: float | None
) -> None:
    assert rewarded(kind, outcome, speed, best) == want


def judged(median: float, reward: float) -> Any:
    return SimpleNamespace(
        speed=SimpleNamespace(speedup=SimpleNamespace(median=median)), reward=reward
    )


def test_what_is_promoted_says_how_fast_an_episode_was() -> None:
    """What did not win is never used, though its median may be larger."""
    scattered, winner = judged(1.3, 1.0), judged(1.15, 3.0)
    verdicts = {"scattered": scattered, "winner": winner, "wrong": judged(9.0, -1.0)}
    assert best_speed(("winner", winner), verdicts) == 1.15
    assert best_speed(None, {**verdicts, "winner": judged(1.15, 2.0)}) == 1.3
    assert best_speed(None, {}) == 0.0


def test_a_table_tells_the_best_that_is_known_of_it() -> None:
    world = world_of(WorldSettings(paths=(str(TABLES),)))
    found = [
        played(SearchPolicy(), Plan(id, "s", 10), world, Play(reward="graded"), SPEECH)
        for id in world.tasks
    ]
    won = [one.episode.reward for one in found if one.episode.notes["won"]]
    assert won and all(reward is not None and 2.0 < reward <= 3.0 for reward in won)


@pytest.mark.parametrize("name", ["order", "portfolio", "nearest", "ranker"])
def test_the_arenas_rivals_are_read_in_the_policys_words_and_play_what_they_never_saw(
    name: str,
) -> None:
    world = world_of(WorldSettings(paths=(str(TABLES),)))
    assert isinstance(world, TableWorld)
    tables = world.tables(world.tasks)
    fitted: list[set[str]] = []

    class Watched:
        def __init__(self) -> None:
            self.inner = ARENA[name]()
            self.name = name

        def fit(self, known: Any, seed: int) -> None:
            self.families = {table.family for table in known}
            self.inner.fit(known, seed)

        def play(self, view: Any, seed: int) -> Any:
            fitted.append(self.families)
            return self.inner.play(view, seed)

    tutors = Tutors(Watched, tables, 0)
    plans = [Plan(table.id, f"t{table.id}", 3) for table in tables]
    episodes = [played(tutors.policy(plan), plan, world, Play(72)) for plan in plans]
    for table, families, one in zip(tables, fitted, episodes, strict=True):
        assert table.family not in families
        assert one.episode.notes["judgements"] <= 3 and one.episode.reward is not None
    said = demonstrations(plans, world, SPEECH, Play(72), tutors.policy)
    assert len(said) == len(plans)


def conversation(*turns: tuple[str, dict[str, Any], dict[str, Any]]) -> tuple[Message, ...]:
    messages: list[Message] = [{"role": "user", "content": "task"}]
    for number, (name, arguments, answer) in enumerate(turns):
        call = ToolCall.of(str(number), name, **arguments)
        function = {"name": call.name, "arguments": call.arguments}
        messages.append(
            {"role": "assistant", "tool_calls": [{"id": call.id, "function": function}]}
        )
        messages.append({"role": "tool", "name": name, "content": json.dumps(answer)})
    return tuple(messages)


def episode(*turns: Any, reward: float | None = 3.0) -> Played:
    sample = demonstrations(plans(1), ToyWorld(), SPEECH, Play(), lambda p: SearchPolicy())[0]
    return Played(Episode((sample,), reward, "answered"), conversation(*turns))


LOOK = ("look", {}, {"ok": True})
PROFILE = ("profile", {"candidate": "a"}, {"ok": True})
VERIFY = ("verify", {"candidate": "a"}, {"ok": True})
SUBMIT = ("submit", {"candidate": "a"}, {"ok": True})


def test_each_filter_drops_what_it_is_named_after_and_nothing_else() -> None:
    good = episode(LOOK, PROFILE, VERIFY, PROFILE, SUBMIT)
    unknown = {"ok": False, "error": "no candidate 'x'; there are: none yet"}
    noisy = {"ok": False, "status": "noisy", "reason": "the machine was busy"}
    broken = ("profile", {"candidate": "x"}, unknown)
    cut: Message = {"role": "user", "content": CUT_OFF}
    cases = {
        "infrastructure": replace(good, episode=replace(good.episode, end="infrastructure")),
        "not positive": replace(good, episode=replace(good.episode, reward=-1.0)),
        "redundant loop": episode(LOOK, PROFILE, PROFILE),
        "broken schema": episode(LOOK, broken, SUBMIT),
        "cut off": replace(good, messages=(*good.messages, cut)),
    }
    assert list(cases) == list(RULES)
    assert why_dropped(good) is None
    assert why_dropped(episode(LOOK, ("submit", {"candidate": "a"}, noisy), PROFILE)) is None
    for name, one in cases.items():
        found = why_dropped(one)
        assert found is not None and found[0] == name and found[1]
    kept, dropped = filtered([good, *cases.values()])
    assert kept == [good] and dropped == dict.fromkeys(cases, 1)


def test_loops_of_several_turns_and_calls_made_too_often_are_redundant() -> None:
    assert why_dropped(episode(LOOK, PROFILE, VERIFY, PROFILE, VERIFY)) is not None
    often = episode(PROFILE, LOOK, PROFILE, VERIFY, PROFILE)
    found = why_dropped(often)
    assert found is not None and "more than 2 times" in found[1]


def test_nothing_random_is_left_to_torch_itself() -> None:
    torch.manual_seed(1)
    random.seed(1)
    before = torch.random.get_rng_state(), random.getstate()
    roll_out(plans(2), ToyWorld(), Sampler(actor(3), SPEECH), Play())
    assert torch.equal(before[0], torch.random.get_rng_state()) and before[1] == random.getstate()


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_filter_says_what_it_is_for(name: str) -> None:
    assert RULES[name].__doc__
