"""The end of a budget that nobody told: the small policy hears and does what it would in training."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from toy_world import ToyTools, ToyWorld
from world_kit import measured

from cuda_agent_backend.agent.judgements import Tally, is_judgement
from cuda_agent_backend.agent.loop import Budget, EpisodeResult, run_episode
from cuda_agent_backend.agent.policies.engine import Sampled
from cuda_agent_backend.agent.policies.mixed import SearchFirst, SearchLast
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.policies.trained.allowance import TURNS
from cuda_agent_backend.agent.policies.trained.policy import TrainedPolicy
from cuda_agent_backend.agent.policies.trained.rendering import UNTOLD
from cuda_agent_backend.agent.policies.trained.speech import Speech
from cuda_agent_backend.agent.protocol import LAST_TURNS, OUT_OF_TIME, Message, ToolCall
from trainer.rollout.episodes import Plan, Play, played
from trainer.rollout.world import Counted
from trainer.stages.config import StageSettings
from trainer.world.replay_tools import NOT_MEASURED, ReplayTools

SPEECH = Speech()
LOSES, WINS = "<s:1>", "<s:0>"
START = ("<look>", f"<sketch> {LOSES}")
OVER = SPEECH.ids(["<user>", "<over>"])


def saying(*messages: str, asked: list[list[int]] | None = None) -> TrainedPolicy:
    """A policy that says these, and the last of them for ever. asked: takes what it had heard each time."""
    said = itertools.chain(messages, itertools.repeat(messages[-1]))

    def generate(request: Any) -> Sampled:
        if asked is not None:
            asked.append(list(request.ids))
        ids = SPEECH.ids([*next(said).split(), "<end>"])
        grammar = SPEECH.grammar().feed(request.ids)
        for id in ids:
            assert id in grammar.allowed()
            grammar.feed([id])
        return Sampled(tuple(ids), (0.0,) * len(ids), True)

    return TrainedPolicy("trained", SPEECH, generate, 1 << 14)


class Untold(ToyTools):
    """Tools of a search that has seconds."""

    def first(self) -> list[Message]:
        (message,) = super().first()
        return [{**message, "content": message["content"].partition("\n")[2]}]


def search(policy: Any, tools: Any = None) -> EpisodeResult:
    tools = tools or Untold()
    return run_episode(policy, tools, Budget(1e6), first=tools.first())


def calls(messages: Sequence[Message]) -> list[str]:
    return [c["function"]["name"] for m in messages for c in m.get("tool_calls", ())]


def overs(policy: TrainedPolicy) -> int:
    ids = policy._listener.ids
    return sum(ids[n : n + 2] == OVER for n in range(len(ids)))


PROFILE, VERIFY, SUBMIT = "<profile> <c:0>", "<verify> <c:0>", "<submit> <c:0>"
BAD = f"<sketch> {LOSES} <set> k:0 p:team v:512"


@pytest.mark.parametrize(
    "script",
    [
        (*START, *[PROFILE] * 10, SUBMIT),
        (*START, PROFILE, *[BAD] * 9, SUBMIT),
        (*START, *[PROFILE, VERIFY] * 5, SUBMIT, "<give_up>"),
        (*START, *[PROFILE] * 20),
        (*START, *[VERIFY] * 20),
        (*START, SUBMIT, *[VERIFY] * 8, PROFILE, "<inspect> <c:0>"),
        (*START, *[PROFILE] * 9, SUBMIT, "<inspect> <c:0>", PROFILE, SUBMIT),
        (*START, *[PROFILE] * 3, "<give_up>"),
        (*START, PROFILE, "<inspect> <c:0>"),
        (*START, *["<inspect> <c:0>"] * 59, *[PROFILE] * 10, SUBMIT),
    ],
)
def test_a_budget_that_nobody_told_ends_as_one_that_training_told(script: tuple[str, ...]) -> None:
    trained, served = list[list[int]](), list[list[int]]()
    plan = Plan("256", "0", UNTOLD)
    told = played(saying(*script, asked=trained), plan, ToyWorld(), Play(turns=TURNS), SPEECH)
    found = search(saying(*script, asked=served))
    assert served == trained
    asked = [calls(messages) for messages in (told.messages, found.trajectory)]
    assert asked[0][: len(asked[1])] == asked[1]  # but for what is not run any more
    assert not any(m.get("content") == OUT_OF_TIME for m in found.trajectory)
    assert StageSettings().turns == TURNS


def test_after_the_last_judgement_it_has_the_turns_that_training_gives_to_submit() -> None:
    policy = saying(*START, *[PROFILE] * UNTOLD, SUBMIT)
    found = search(policy)
    assert overs(policy) == 1
    assert calls(found.trajectory).count("submit") == LAST_TURNS
    assert found.stop == "cost" and "10 judgements are used up" in found.reason


def test_what_it_found_and_never_submitted_is_judged_as_it_ends() -> None:
    found = search(saying("<look>", f"<sketch> {WINS}", PROFILE))
    assert calls(found.trajectory).count("profile") == UNTOLD
    assert found.best is not None and found.stop == "submitted"


def test_calls_of_a_message_for_which_no_judgement_is_left_are_not_made() -> None:
    script = ("<look>", f"<sketch> {LOSES}", *[PROFILE] * 7, " ".join([PROFILE] * 8), SUBMIT)
    policy = saying(*script)
    found = search(policy)
    assert calls(found.trajectory).count("profile") == UNTOLD and overs(policy) == 1
    said = SPEECH.encoded(found.trajectory)
    assert said is not None
    at = policy._listener.ids.index(OVER[1]) - 1
    assert list(said.ids[:at]) == policy._listener.ids[:at]


def test_the_tokens_of_a_message_that_was_cut_are_those_sampled_and_the_next_prompt_is_whole() -> (
    None
):
    policy, tools = (
        saying("<look>", f"<sketch> {LOSES}", *[" ".join([PROFILE] * 8)] * 2, SUBMIT),
        Untold(),
    )
    messages, turns = tools.first(), []
    for _ in range(5):
        turn: Any = policy.act(messages, ())
        turns.append(turn)
        messages += [turn.to_message(), *tools.run(turn.calls)]
    assert [len(turn.calls) for turn in turns] == [1, 1, 8, 2, 1]
    assert len(turns[3].tokens.ids) == 17 and turns[3].tokens.follows
    last = turns[4].tokens
    assert not last.follows and [*last.prompt, *last.ids] == policy._listener.ids


def test_an_episode_that_another_process_takes_up_has_what_is_left_of_its_judgements() -> None:
    for turns in (3, 9, 12, 13):
        first = saying(*START, PROFILE)
        tools = Untold()
        messages = tools.first()
        for _ in range(turns):
            turn: Any = first.act(messages, ())
            if not getattr(turn, "calls", ()):
                break
            messages += [turn.to_message(), *tools.run(turn.calls)]
        first.act(messages, ())
        again = saying(PROFILE)
        assert again.resume(messages, ()) == ""
        again.act(messages, ())
        assert again._listener.ids == first._listener.ids


def test_that_the_time_is_up_is_heard_once_whoever_says_it_first() -> None:
    for seconds in (UNTOLD - 2.5, UNTOLD - 0.5, 1e6):
        policy, tools = saying(*START, *[PROFILE] * 20), Untold()
        counted = Counted(tools, UNTOLD)
        run_episode(
            policy,
            counted,  # type: ignore[arg-type]
            Budget(seconds),
            clock=lambda counted=counted: float(counted.judgements),  # type: ignore[misc]
            first=tools.first(),
        )
        assert overs(policy) == 1


def test_a_policy_that_never_ends_leaves_the_search_its_part() -> None:
    for script in (
        (*START, PROFILE),
        (*START, VERIFY),
        (*START, PROFILE, BAD),
        (*START, "<inspect> <c:0>"),
        ("<give_up>",),
    ):
        found = search(SearchLast("trained+search", saying(*script), SearchPolicy()))
        own = [
            c["function"]["name"]
            for m in found.trajectory
            for c in m.get("tool_calls", ())
            if not c["id"].startswith("search_")
        ]
        assert len(own) <= TURNS
        assert found.best is not None and found.stop == "submitted"


def test_after_the_search_it_has_all_its_judgements() -> None:
    model = saying(PROFILE)
    found = search(SearchFirst("search+trained", SearchPolicy(judgements=4), model))
    own = [
        c
        for m in found.trajectory
        for c in m.get("tool_calls", ())
        if not c["id"].startswith("search_")
    ]
    assert len(own) == UNTOLD and overs(model) == 1
    assert found.best is not None


def test_judgements_of_a_conversation_are_those_that_its_tools_counted() -> None:
    counted_any = 0
    for seed, made in enumerate([ToyTools(), *map(ReplayTools.of, measured())]):
        tools, tally = Counted(made, 1000), Tally()
        policy = SearchPolicy(judgements=8, seed=seed)
        found = run_episode(policy, tools, Budget(1e6), first=tools.first())  # type: ignore[arg-type]
        counted = sum([tally.follow(message) for message in found.trajectory])
        unmeasured = sum(NOT_MEASURED in str(m["content"]) for m in found.trajectory)
        assert counted in (tools.judgements, tools.judgements + unmeasured)
        assert tally.profiled == set(tools.profiles)
        counted_any += counted
    assert counted_any > 20


@pytest.mark.parametrize(
    ("call", "answer", "counts"),
    [
        (ToolCall.of("1", "profile", candidate="a1f0"), {"ok": False}, True),
        (ToolCall.of("1", "verify", candidate="b2e9"), {"ok": True}, True),
        (ToolCall.of("1", "look"), {"ok": True}, False),
        (ToolCall.of("1", "inspect", candidate="a1f0"), {"ok": True}, False),
        (ToolCall.of("1", "sketch", schedule=[]), {"ok": True, "candidate": "a1f0"}, False),
        (ToolCall.of("1", "sketch", schedule=[]), {"ok": False, "error": "no"}, True),
        (ToolCall.of("1", "submit", candidate="a1f0"), {"ok": True}, False),
        (ToolCall.of("1", "submit", candidate="b2e9"), {"ok": True}, True),
        (ToolCall.of("1", "submit", reason="no"), {"ok": True}, False),
        (ToolCall("1", "submit", '{"candidate": '), {"ok": False}, True),
    ],
)
def test_which_calls_count(call: ToolCall, answer: dict[str, Any], counts: bool) -> None:
    assert is_judgement(call, json.dumps(answer), {"a1f0"}) == counts
