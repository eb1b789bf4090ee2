"""Episodes as ids: what was sampled stays as it was, what tools say is masked, the reward is on a sampled id."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.chat import call
from token_kit import TEMPLATE, Speaker, byte_tokenizer
from toy_world import ToyTools, ToyWorld

from cuda_agent_backend.agent.policies.chat import Chat
from cuda_agent_backend.agent.protocol import CUT_OFF, Tokens
from trainer.environment.session import Outcome, Session
from trainer.environment.tokens import TemplateChanges, play, response_of

MOST = 20_000


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_tokenizer()


def played(
    tokenizer: Any, *texts: Any, most: int = MOST, task: str = "256", world: Any = None
) -> tuple[tuple[Tokens, ...], Session, Speaker]:
    session, speaker = Session(world or ToyWorld()), Speaker(tokenizer, *texts)
    first = session.start(task)
    turns = asyncio.run(play(session, first, Chat(tokenizer, 400_000), speaker, most))
    return turns, session, speaker


def best(text: str) -> str:
    return call(
        "sketch", schedule=[{"sketch": "row", "team": ToyTools(256).best_team, "vector": 4}]
    )


def submission(text: str) -> str:
    name = json.loads(text[text.rindex('{"candidate"') :].partition("<|end|>")[0])["candidate"]
    return "This one. " + call("submit", candidate=name)


def test_ids_are_those_that_were_sampled_and_the_rest_is_masked(tokenizer: Any) -> None:
    turns, session, speaker = played(tokenizer, call("look"), "cut~", best, submission)
    assert session.outcome is not None and session.outcome.reward == 3.0
    made = response_of(turns, session.outcome.reward, MOST)
    whole = [*made.prompt, *made.ids]
    for before, said in zip(speaker.given, speaker.said, strict=True):
        assert whole[: len(before)] == before
        assert whole[len(before) : len(before) + len(said)] == said
    assert list(made.prompt) == speaker.given[0]
    own = [id for id, mark in zip(made.ids, made.mask, strict=True) if mark]
    assert own == [id for said in speaker.said for id in said]
    assert made.logprobs is not None
    scored = [p for p, mark in zip(made.logprobs, made.mask, strict=True) if mark]
    assert scored == [-float(n + 1) for n in range(len(own))]
    assert {p for p, mark in zip(made.logprobs, made.mask, strict=True) if not mark} == {0.0}
    assert made.mask[-1] == 1 and (made.reward, made.known) == (3.0, True)
    told = tokenizer.decode([id for id, mark in zip(made.ids, made.mask, strict=True) if not mark])
    assert CUT_OFF in told and '"eager_us": 30.0' in told and "This one" not in told


def test_what_was_cut_off_is_never_run(tokenizer: Any) -> None:
    turns, session, _ = played(tokenizer, call("submit", reason="enough") + "~", "I stop.")
    assert len(turns) == 2 and session.outcome is not None
    assert (session.outcome.stop, session.outcome.reason) == ("gave_up", "I stop.")


def test_an_episode_without_room_ends_on_what_was_sampled(tokenizer: Any) -> None:
    turns, session, speaker = played(tokenizer, call("look"), "a" * 50, most=200)
    assert session.outcome is not None and session.outcome.stop == "context"
    assert len(speaker.said) == 1 and speaker.rooms == [200]
    made = response_of(turns, session.outcome.reward, 200)
    assert list(made.ids) == speaker.said[0] and made.reward == -1.0 and set(made.mask) == {1}


@pytest.mark.parametrize(
    ("most", "left"), [(2, [1, 2]), (3, [1, 2]), (5, [1, 2]), (6, [1, 2, 8, 8, 8, 3])]
)
def test_a_response_that_is_cut_ends_on_a_sampled_id(most: int, left: list[int]) -> None:
    turns = [Tokens((9,), (1, 2), (-1.0, -2.0)), Tokens((8, 8, 8), (3, 4), (-3.0, -4.0), True)]
    made = response_of(turns, 2.0, most)
    assert list(made.ids) == left and made.mask[-1] == 1 and made.reward == 2.0
    assert made.logprobs is not None and len(made.logprobs) == len(made.mask) == len(left)


def test_an_unknown_reward_trains_nothing(tokenizer: Any) -> None:
    turns, session, _ = played(tokenizer, call("look"))  # then the server is gone
    assert session.outcome == Outcome("infrastructure", "the server is gone", None)
    made = response_of(turns, session.outcome.reward, MOST)
    assert (made.known, made.reward, set(made.mask)) == (False, 0.0, {0}) and made.ids
    assert response_of((), 1.0, MOST, empty=7) == response_of((), None, MOST, empty=7)
    silent = response_of((), None, MOST, empty=7)
    assert (silent.ids, silent.mask, silent.logprobs) == ((7,), (0,), (0.0,))
    dead, over, _ = played(tokenizer, "-", world=ToyWorld(dies=frozenset({"256"})))
    assert dead == () and over.outcome is not None and over.outcome.reward is None


def test_turns_that_are_no_one_sequence_are_refused() -> None:
    turns = [Tokens((9,), (1,), (-1.0,)), Tokens((8,), (2,), (-1.0,))]
    with pytest.raises(ValueError, match="does not follow"):
        response_of(turns, 1.0, MOST)


def test_without_log_probabilities_there_are_none() -> None:
    assert response_of([Tokens((9,), (1, 2))], 1.0, MOST).logprobs is None


def test_what_samples_may_raise_and_the_session_is_closed(tokenizer: Any) -> None:
    session, speaker = Session(ToyWorld()), Speaker(tokenizer, call("look"), OSError("no route"))
    first = session.start("256")
    with pytest.raises(OSError, match="no route"):
        asyncio.run(play(session, first, Chat(tokenizer, 400_000), speaker, MOST))
    assert session.outcome is not None and session.outcome.stop == "interrupted"


def test_a_template_that_changes_what_was_said_is_refused() -> None:
    changing = byte_tokenizer("{{ messages | length }}" + TEMPLATE)
    with pytest.raises(TemplateChanges, match="renders a conversation otherwise"):
        played(changing, call("look"), call("look"))


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 99), max_size=5), st.lists(st.integers(0, 99), max_size=5)
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 40),
)
def test_any_turns_give_a_response_of_equal_lengths_that_keeps_what_was_sampled(
    pairs: list[tuple[list[int], list[int]]], most: int
) -> None:
    turns = [
        Tokens(tuple(prompt), tuple(said), (-1.0,) * len(said), n > 0)
        for n, (prompt, said) in enumerate(pairs)
    ]
    made = response_of(turns, 1.0, most)
    assert made.logprobs is not None
    assert len(made.ids) == len(made.mask) == len(made.logprobs) <= max(most, 1)
    every = [*pairs[0][1], *(id for prompt, said in pairs[1:] for id in (*prompt, *said))]
    if made.known:
        assert list(made.ids) == every[: len(made.ids)] and made.mask[-1] == 1
        kept = [id for id, mark in zip(made.ids, made.mask, strict=True) if mark]
        assert kept == [id for _, said in pairs for id in said][: len(kept)]
    else:
        assert made.ids == (0,) and made.mask == (0,) and made.reward == 0.0
