"""The small policy: its words, what it may say, how it is sampled, and the weights that it is loaded from."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_world import ToyTools

from cuda_agent_backend.agent.loop import Budget, run_episode
from cuda_agent_backend.agent.policies.registry import make_policy, missing, problem
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.policies.spec import PolicySpec, Sampling
from cuda_agent_backend.agent.policies.trained import place, weights
from cuda_agent_backend.agent.policies.trained.cache import new_cache
from cuda_agent_backend.agent.policies.trained.policy import TrainedPolicy, forget_models
from cuda_agent_backend.agent.policies.trained.sampler import Request, Sampler
from cuda_agent_backend.agent.policies.trained.speech import Listener, Speech
from cuda_agent_backend.agent.policies.trained.vocabulary import tokenizer_of, words
from cuda_agent_backend.agent.protocol import Message, ToolCall, parse_arguments
from trainer.policy.model import Size, actor_of, config_of, parameters_of

SPEECH = Speech()
TINY = Size(hidden=32, layers=2, heads=2, key_heads=1, head=16, inner=64, window=1024)


def model(seed: int = 0, size: Size = TINY) -> Any:
    ids = SPEECH.words.ids
    return actor_of(config_of(size, len(ids), ids["<end>"], ids["<pad>"]), seed)


def play(policy: Any, tools: ToyTools, turns: int = 12) -> Any:
    return run_episode(policy, tools, Budget(1e6, turns), first=tools.first())  # type: ignore[arg-type]


def policy_of(sampler: Sampler, seed: str = "0", key: int = 0) -> TrainedPolicy:
    session = sampler.session()
    return TrainedPolicy(
        "trained", SPEECH, lambda r: session.generate([r])[0], sampler.window, key, seed
    )


def test_the_vocabulary_is_the_same_in_every_process_and_its_tokenizer_splits_at_spaces() -> None:
    vocabulary = words()
    assert vocabulary == words() and len(vocabulary) == len(set(vocabulary)) < 4096
    assert all(not set(word) & set(" \t\n") and word for word in vocabulary)
    made = tokenizer_of(vocabulary)
    said = ["<task>", "target:cpu", "d:80", "v:128", "<end>"]
    assert made.encode(" ".join(said)).ids == SPEECH.ids(said)
    assert SPEECH.ids(["op:aten.never.seen"]) == SPEECH.ids(["op:aten.never.seen"])
    assert SPEECH.words.words[SPEECH.ids(["p:never_seen"])[0]].startswith("p#")


def test_whatever_a_model_of_chance_says_is_a_call_that_the_tools_take() -> None:
    sampler = Sampler(model(), SPEECH)
    tools = ToyTools()
    schemas = {schema["function"]["name"]: schema for schema in tools.schemas}
    calls = 0
    for seed in range(24):
        tools = ToyTools(64 << seed % 6)
        result = play(policy_of(sampler, str(seed)), tools)
        assert result.stop in ("submitted", "gave_up", "turns")
        for message in result.trajectory:
            for call in message.get("tool_calls", ()):
                function = call["function"]
                parse_arguments(
                    type("C", (), {"name": function["name"], "arguments": function["arguments"]})(),
                    schemas[function["name"]],
                )
                calls += 1
    assert calls > 40


def test_a_conversation_of_the_search_is_said_in_the_policys_words_and_back() -> None:
    tools = ToyTools(512)
    result = play(SearchPolicy(), tools)
    assert result.stop == "submitted"
    found = SPEECH.encoded(result.trajectory)
    assert found is not None and len(found.ids) == len(found.spoken)
    listener, said = Listener(SPEECH), 0
    waiting: list[Message] = []
    for message in result.trajectory:
        if message["role"] != "assistant":
            waiting.append(message)
            continue
        listener.hear(waiting)
        ids = SPEECH.message_ids(message, listener.known)
        assert ids is not None
        turn = SPEECH.turn(ids, listener.known, 1)
        listener.say(ids)
        said += len(ids)
        waiting = []
        want = [
            (c["function"]["name"], json.loads(c["function"]["arguments"]))
            for c in message["tool_calls"]
        ]
        assert [(c.name, json.loads(c.arguments)) for c in turn.calls] == want
    assert said == sum(found.spoken)


def test_a_schedule_is_said_as_the_nearest_one_proposed_with_changes() -> None:
    tools = ToyTools()
    listener = Listener(SPEECH)
    (look,) = tools.run([_call("look", {})])
    listener.hear([*tools.first(), look])
    message = _message("sketch", {"schedule": [{"sketch": "row", "team": 512, "vector": 4}]})
    ids = SPEECH.message_ids(message, listener.known)
    assert ids is not None
    said = [SPEECH.words.words[id] for id in ids]
    assert said == ["<sketch>", "<s:0>", "<set>", "k:0", "p:team", "v:512", "<end>"]
    (call,) = SPEECH.turn(ids, listener.known, 1).calls
    assert json.loads(call.arguments)["schedule"][0]["team"] == 512
    grammar = SPEECH.grammar().feed(listener.ids)
    for id in ids:
        assert id in grammar.allowed()
        grammar.feed([id])
    other = _message("sketch", {"schedule": [{"tile": 3}]})
    assert SPEECH.message_ids(other, listener.known) is None


def _call(name: str, arguments: dict[str, Any]) -> Any:
    return ToolCall.of("1", name, **arguments)


def _message(name: str, arguments: dict[str, Any]) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}


def test_the_budget_is_told_in_the_first_message() -> None:
    ten, three = (ToyTools(judgements=n).first() for n in (10, 3))
    said = [Listener(SPEECH).hear(first) for first in (ten, three)]
    assert said[0] != said[1]
    untold = [{"role": "user", "content": ten[0]["content"].partition("\n")[2]}]
    assert Listener(SPEECH).hear(untold) == said[0]  # as in a search that has seconds
    assert SPEECH.words.words[said[0][1]] == "<budget>"


def test_ids_and_log_probabilities_hang_on_no_other_conversation() -> None:
    sampler = Sampler(model(3), SPEECH, piece=7)
    prompts = [Listener(SPEECH).hear(ToyTools(64 << n).first()) for n in range(3)]
    prompts[1] = [*prompts[1][:4], SPEECH.words.assistant]
    requests = [Request(n, prompt, f"seed {n}") for n, prompt in enumerate(prompts)]
    together = sampler.session().generate(requests)
    alone = [Sampler(sampler.model, SPEECH).session().generate([r])[0] for r in requests]
    for one, other in zip(together, alone, strict=True):
        assert one.ids == other.ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_conversations_that_begin_alike_are_read_once_and_then_go_their_own_ways() -> None:
    sampler = Sampler(model(3), SPEECH, piece=7)
    read: list[int] = []
    forward = sampler.model.model.forward

    def counting(input_ids: torch.Tensor, **how: Any) -> Any:
        read.append(input_ids.numel())
        return forward(input_ids=input_ids, **how)

    first, other = (Listener(SPEECH).hear(ToyTools(64 << n).first()) for n in range(2))
    begun = [(1, first), (2, other[-20:]), (3, first), (4, first)]
    sampler.model.model.forward = counting
    session = sampler.session()
    said = session.generate([Request(key, ids, str(key)) for key, ids in begun])
    assert read[0] == 2 * 7  # of two prompts the first piece, not of four
    sampler.model.model.forward = forward
    again = [
        Request(key, [*ids, *one.ids, *first[:key], SPEECH.words.assistant], f"{key}/2")
        for (key, ids), one in zip(begun, said, strict=True)
    ]
    grown = session.generate(again)
    for requests, found in (([Request(k, i, str(k)) for k, i in begun], said), (again, grown)):
        alone = [Sampler(sampler.model, SPEECH).session().generate([r])[0] for r in requests]
        assert [one.ids for one in found] == [one.ids for one in alone]
        for one, lone in zip(found, alone, strict=True):
            assert one.logprobs == pytest.approx(lone.logprobs, abs=1e-5)
    assert len({one.ids for one in said}) > 1


def test_a_cache_that_grows_holds_what_one_of_transformers_holds() -> None:
    from transformers.cache_utils import DynamicCache

    ours, theirs = new_cache(model().config), DynamicCache()
    assert ours is not None
    generator = torch.Generator().manual_seed(0)
    for places in (3, 1, 70, 1, 1):
        keys, values = (torch.randn(4, 2, places, 8, generator=generator) for _ in "kv")
        pair = ours.update(keys, values, 0), theirs.update(keys, values, 0)
        for found, wanted in zip(*pair, strict=True):
            assert torch.equal(found, wanted)
        for cache in (ours, theirs):
            cache.batch_select_indices(torch.tensor([1, 0, 0, 3]))
    assert ours.get_seq_length() == theirs.get_seq_length() == 76


def test_what_is_sampled_over_many_turns_has_the_probability_of_the_whole_conversation() -> None:
    """The cache, with its pads and with conversations that end, changes nothing: engine gap below 1e-3."""
    sampler = Sampler(model(5), SPEECH, piece=64)
    session, tools = sampler.session(), [ToyTools(64 << n) for n in range(4)]
    policies = [
        TrainedPolicy("p", SPEECH, lambda r: session.generate([r])[0], 1024, n, str(n))
        for n in range(4)
    ]
    rows = [policy._listener for policy in policies]
    messages = [tool.first() for tool in tools]
    gaps = []
    for turn in range(5):
        for n in range(4):
            if turn > n and n < 2:
                continue
            made = policies[n].act(messages[n], ())
            messages[n] += [made.to_message(), *tools[n].run(made.calls)]  # type: ignore[union-attr]
            rows[n] = policies[n]._listener
            tokens = made.tokens  # type: ignore[union-attr]
            ids = rows[n].ids
            start = len(ids) - len(tokens.ids)
            with torch.no_grad():
                logits = sampler.model(torch.tensor([ids])).logits[0].double()
            grammar = SPEECH.grammar().feed(ids[:start])
            for at, id in enumerate(tokens.ids, start):
                allowed = list(grammar.allowed())
                logprob = torch.log_softmax(logits[at - 1, allowed], 0)[allowed.index(id)]
                gaps.append(abs(float(logprob) - tokens.logprobs[at - start]))
                grammar.feed([id])
    assert len(gaps) > 20 and max(gaps) < 1e-3


def test_a_conversation_that_grows_in_place_is_heard_once_and_stays_as_it_was() -> None:
    """An episode hands over its own list each turn; nothing of it is kept, and nothing heard twice."""
    sampler = Sampler(model(6), SPEECH)
    tools, grown = ToyTools(), ToyTools().first()
    one, other = policy_of(sampler, "4"), policy_of(sampler, "4")
    said = []
    for _ in range(4):
        before = json.dumps(grown)
        turn, again = one.act(grown, ()), other.act(json.loads(before), ())
        assert json.dumps(grown) == before and turn == again
        tokens = turn.tokens  # type: ignore[union-attr]
        assert tokens is not None
        said += [*tokens.prompt, *tokens.ids]
        grown += [turn.to_message(), *tools.run(turn.calls)]  # type: ignore[union-attr]
    assert said == one._listener.ids


def test_draws_follow_the_probabilities() -> None:
    import random

    sampler = Sampler(model(), SPEECH)
    grammar = SPEECH.grammar().feed(Listener(SPEECH).hear(ToyTools().first()))
    logits = torch.zeros(len(SPEECH.words.words))
    allowed = grammar.allowed()
    logits[allowed[0]] = math.log(3.0)
    assert len(allowed) == 2
    drawn = [sampler.draw(logits, grammar, random.Random(n)) for n in range(2000)]
    share = sum(id == allowed[0] for id, _ in drawn) / len(drawn)
    assert share == pytest.approx(0.75, abs=0.03)
    greedy = Sampler(sampler.model, SPEECH, temperature=0.0)
    assert greedy.draw(logits, grammar, random.Random(1)) == (
        allowed[0],
        pytest.approx(math.log(0.75)),
    )


def test_a_message_that_is_cut_off_is_not_run_and_the_conversation_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cuda_agent_backend.agent.policies.trained import sampler as module

    monkeypatch.setattr(module, "MOST_IDS", 1)
    sampler = Sampler(model(1), SPEECH)
    tools = ToyTools()
    result = play(policy_of(sampler), tools, turns=3)
    assert result.stop == "turns" and not tools.candidates
    assert all("tool_calls" not in message for message in result.trajectory)
    assert sum(m["role"] == "user" for m in result.trajectory) == 4


def test_an_episode_in_another_process_goes_on_with_the_same_words() -> None:
    sampler = Sampler(model(2), SPEECH)
    played = [(str(n), play(policy_of(sampler, str(n)), ToyTools(), turns=6)) for n in range(9)]
    seed, whole = max(played, key=lambda pair: pair[1].turns)
    said = [m for m in whole.trajectory if m["role"] == "assistant"]
    assert len(said) > 1
    before = whole.trajectory[: whole.trajectory.index(said[1])]
    again = policy_of(sampler, seed)
    assert again.resume(before, ()) == ""
    turn = again.act(before, ())
    assert turn.to_message() == said[1]  # type: ignore[union-attr]
    assert turn.tokens is not None and not turn.tokens.follows  # type: ignore[union-attr]


def test_weights_are_written_read_and_spoken_with(tmp_path: Path) -> None:
    made = model(4)
    weights.save(made, SPEECH, {"stage": "test"}, tmp_path)
    found = weights.load(tmp_path)
    assert isinstance(found, weights.Loaded) and found.card["stage"] == "test"
    assert found.speech.words.words == SPEECH.words.words
    for name, value in made.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value)
    spec = PolicySpec("trained", str(tmp_path), sampling=Sampling(temperature=1.0, seed=1))
    assert problem(spec) == missing(spec) == ""
    result = play(make_policy(spec), ToyTools())
    assert result.turns > 0
    mixed = make_policy(replace(spec, name="trained+search"))
    assert play(mixed, ToyTools(), turns=40).stop == "submitted"
    forget_models()


@pytest.mark.parametrize(
    ("card", "asked", "speaks"),
    [({}, None, 0.0), ({"temperature": 0.7}, None, 0.7), ({"temperature": 0.7}, 1.0, 1.0)],
)
def test_it_speaks_at_the_temperature_of_its_card_unless_it_is_told_another(
    card: dict[str, float],
    asked: float | None,
    speaks: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = model(4)
    weights.save(made, SPEECH, card, tmp_path)
    seen: list[float] = []
    session = Sampler.session
    monkeypatch.setattr(
        Sampler, "session", lambda self: (seen.append(self.temperature), session(self))[1]
    )
    spec = PolicySpec("trained", str(tmp_path), sampling=Sampling(temperature=asked))
    make_policy(spec)
    assert seen == [speaks]
    forget_models()


def test_a_policy_without_a_temperature_is_of_earlier_days_and_takes_the_likeliest_word(
    tmp_path: Path,
) -> None:
    weights.save(model(), SPEECH, {}, tmp_path)
    path = tmp_path / "policy.json"
    card = json.loads(path.read_text())
    assert card.pop("temperature") == 0.0
    path.write_text(json.dumps(card))
    found = weights.load(tmp_path)
    assert isinstance(found, weights.Loaded) and found.temperature == 0.0
    for wrong in ("warm", -1.0, True, float("nan"), None):
        path.write_text(json.dumps({**card, "temperature": wrong}))
        refused = weights.load(tmp_path)
        assert isinstance(refused, weights.Unusable) and "temperature" in refused.reason


def test_without_weights_the_policy_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "shipped", lambda: tmp_path)
    why = missing(PolicySpec("trained"))
    assert "no weights are in the package" in why and "cuda-agent-train run" in why
    with pytest.raises(ImportError, match="cuda-agent-train run"):
        make_policy(PolicySpec("trained"))


def test_weights_cut_short_or_with_another_tokenizer_are_refused(tmp_path: Path) -> None:
    weights.save(model(), SPEECH, {}, tmp_path)
    tensors = tmp_path / "model.safetensors"
    data = tensors.read_bytes()
    tensors.write_bytes(data[: len(data) // 2])
    found = weights.load(tmp_path)
    assert isinstance(found, weights.Unusable) and "cannot be read" in found.reason
    tensors.write_bytes(data)
    other = tokenizer_of([*words()[::-1]]).to_str()
    (tmp_path / "tokenizer.json").write_text(other)
    found = weights.load(tmp_path)
    assert isinstance(found, weights.Unusable) and "not the tokenizer" in found.reason
    (tmp_path / "policy.json").write_text("{")
    found = weights.load(tmp_path)
    assert isinstance(found, weights.Unusable) and "not whole" in found.reason


def test_the_small_policy_is_of_one_to_thirty_million_parameters_and_untied() -> None:
    made = model(size=Size())
    assert 1e6 < parameters_of(made) < 30e6
    assert made.lm_head.weight.data_ptr() != made.model.embed_tokens.weight.data_ptr()
