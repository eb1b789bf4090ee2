"""PPO over many turns, against numbers computed by hand, and each way in which it goes wrong without a word."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_agent_backend.agent.protocol import Tokens
from trainer.policy.model import Size, actor_of, config_of, critic_of
from trainer.ppo import batch, update
from trainer.ppo.advantages import Outcome, gae, lambda_of, returns, whitening
from trainer.ppo.batch import (
    action_logprobs,
    action_values,
    batch_of,
    can_share,
    grouped,
    planned,
    start_of,
    with_less_memory,
)
from trainer.ppo.episode import Episode, Sample, samples_of
from trainer.ppo.losses import (
    Clip,
    NotANumber,
    explained_variance,
    kept,
    likelihood_loss,
    policy_loss,
    value_loss,
)
from trainer.ppo.prepare import Estimates, Step, outcome_of, prepare
from trainer.ppo.ranks import Alone, share
from trainer.ppo.update import (
    Learning,
    Rules,
    update_actor,
    update_critic,
    update_likelihood,
)

WORDS = 40
TINY = Size(hidden=16, layers=2, heads=2, key_heads=1, head=8, inner=32, window=512)


def tiny(seed: int = 0) -> Any:
    return actor_of(config_of(TINY, WORDS, 1, 0), seed)


def sample(seed: int, turns: int = 2, tool: int = 5, said: int = 3, allowed: int = 4) -> Sample:
    """A conversation of ``turns`` messages, with log-probabilities that fit nothing."""
    chance = random.Random(seed)
    ids, spoken, choices = [2], [False], []
    for _ in range(turns):
        ids += [chance.randrange(2, WORDS) for _ in range(tool)]
        spoken += [False] * tool
        for _ in range(said):
            among = sorted(chance.sample(range(2, WORDS), allowed))
            choices.append(tuple(among))
            ids.append(chance.choice(among))
            spoken.append(True)
    return Sample(tuple(ids), tuple(spoken), (), tuple(choices))


def with_logprobs(one: Sample, actor: Any) -> Sample:
    with torch.no_grad():
        found, _ = action_logprobs(actor, batch_of([one]))
    return replace(one, logprobs=tuple(found.tolist()))


def episodes_of(actor: Any, rewards: list[float]) -> list[Episode]:
    return [
        Episode((with_logprobs(sample(n, 1 + n % 3), actor),), reward, "answered")
        for n, reward in enumerate(rewards)
    ]


def test_advantages_are_those_computed_by_hand() -> None:
    # deltas: 0.6 - 0.5, 0.2 - 0.6, 3 - 0.2 = 0.1, -0.4, 2.8; decay 0.5
    values, outcome = [0.5, 0.6, 0.2], Outcome(3.0)
    assert gae(values, outcome, 0.5) == pytest.approx([0.1 - 0.2 + 0.7, -0.4 + 1.4, 2.8])
    assert gae(values, outcome, 1.0) == pytest.approx([2.5, 2.4, 2.8])
    assert returns(values, outcome) == pytest.approx([3.0, 3.0, 3.0])
    assert returns(values, outcome, 0.5) == pytest.approx([1.1, 1.6, 3.0])


def test_an_episode_that_was_cut_off_is_worth_what_the_critic_says_and_not_nothing() -> None:
    assert gae([0.5, 0.6], Outcome(0.0, 2.0), 1.0) == pytest.approx([1.5, 1.4])
    cut = Episode((), None, "context")
    assert outcome_of(cut, 1.25, True) == Outcome(0.0, 1.25)
    assert outcome_of(replace(cut, reward=-1.0), 1.25, True) == Outcome(0.0, 1.25)
    assert outcome_of(cut, 1.25, False) == Outcome(-1.0)
    assert outcome_of(replace(cut, reward=2.0), 1.25, True) == Outcome(2.0)
    told = Episode((), -1.0, "turns")  # its budget is part of its task
    assert outcome_of(told, 1.25, True) == Outcome(-1.0)


def test_the_value_that_an_episode_is_cut_off_at_is_the_one_after_its_last_id() -> None:
    actor = tiny()
    critic = critic_of(actor)
    torch.nn.init.constant_(critic.score.bias, 0.5)
    torch.nn.init.normal_(critic.score.weight, std=0.3)
    one = sample(3)
    longer = replace(
        one, ids=(*one.ids, 9, 5), spoken=(*one.spoken, False, True), allowed=(*one.allowed, (5, 6))
    )
    _, after = action_values(critic, batch_of([one]))
    before, _ = action_values(critic, batch_of([replace(longer, ids=(*longer.ids[:-1], 6))]))
    cut = replace(one, ids=(*one.ids, 9), spoken=(*one.spoken, False))
    _, after_tool = action_values(critic, batch_of([cut]))
    assert after_tool[0].item() == pytest.approx(before[-1].item(), abs=1e-5)
    assert after[0].item() != pytest.approx(after_tool[0].item(), abs=1e-5)


def test_lambda_grows_with_length_and_has_a_floor() -> None:
    assert lambda_of(1) == lambda_of(10) == lambda_of(400) == 0.95
    assert lambda_of(800) == pytest.approx(0.975)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 12), st.integers(0, 1000))
def test_advantages_do_not_change_when_tools_write_more(extra: int, seed: int) -> None:
    """Masked ids are no steps: with a critic that does not see them, all stays the same to the last digit."""
    one = sample(seed)
    place = one.actions[3]
    more = replace(
        one,
        ids=one.ids[:place] + (7,) * extra + one.ids[place:],
        spoken=one.spoken[:place] + (False,) * extra + one.spoken[place:],
    )
    found = [
        prepare([Episode((s,), 3.0, "answered")], None, None, Estimates(whiten=False), Alone())
        for s in (one, more)
    ]
    first, second = (f.steps[0] for f in found)
    assert torch.equal(first.advantages, second.advantages)
    assert torch.equal(first.returns, second.returns)


def test_the_reward_lands_on_the_last_action_token_though_a_tool_has_the_last_word() -> None:
    one = sample(1)
    ends_on_tool = replace(one, ids=(*one.ids, 5, 6), spoken=(*one.spoken, False, False))
    found = prepare(
        [Episode((ends_on_tool,), 3.0, "answered")],
        None,
        None,
        Estimates(whiten=False),
        Alone(),
    )
    (step,) = found.steps
    assert len(step.advantages) == len(one.actions) and float(step.advantages[-1]) == 3.0


def test_the_ids_that_are_learnt_from_are_the_ids_that_the_engine_saw() -> None:
    turns = [
        Tokens((1, 2, 3), (4, 5), (-0.1, -0.2)),
        Tokens((6,), (7,), (-0.3,), follows=True),
        Tokens((1, 2, 9), (8,), (-0.4,)),
    ]
    first, second = samples_of(turns)
    assert first == (
        [1, 2, 3, 4, 5, 6, 7],
        [False, False, False, True, True, False, True],
        [-0.1, -0.2, -0.3],
    )
    assert second == ([1, 2, 9, 8], [False] * 3 + [True], [-0.4])


def test_marks_that_do_not_fit_the_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="marks"):
        Sample((1, 2), (False,))
    with pytest.raises(ValueError, match="log-probabilities"):
        Sample((1, 2), (False, True), (-1.0, -2.0))
    with pytest.raises(ValueError, match="follows nothing"):
        Sample((1, 2), (True, True))


def test_the_clipped_loss_is_the_one_computed_by_hand() -> None:
    old = torch.zeros(4)
    new = torch.log(torch.tensor([1.5, 0.5, 1.5, 20.0]))
    advantages = torch.tensor([1.0, -1.0, -1.0, -1.0])
    # min(1.5, 1.28), min(-0.5, -0.8), min(-1.5, -1.28), max(min(-20, -1.28), -10)
    loss, told = policy_loss(new, old, advantages, Clip(), 4.0)
    assert float(loss) == pytest.approx(-(1.28 - 0.8 - 1.5 - 10.0) / 4)
    assert float(told.clipped) == 4.0 and float(told.ratio) == pytest.approx(23.5)
    kl = sum(r - 1 - math.log(r) for r in (1.5, 0.5, 1.5, 20.0))
    assert float(told.kl) == pytest.approx(kl, rel=1e-5)


def test_the_clipped_value_loss_is_the_one_computed_by_hand() -> None:
    new, old = torch.tensor([2.0, 0.2]), torch.tensor([0.0, 0.0])
    wanted = torch.tensor([3.0, 1.0])
    # (2 - 3)^2 = 1 and (0.5 - 3)^2 = 6.25; (0.2 - 1)^2 = 0.64 twice
    loss, clipped = value_loss(new, old, wanted, 0.5, 2.0)
    assert float(loss) == pytest.approx(0.5 * (6.25 + 0.64) / 2) and float(clipped) == 1.0
    plain, _ = value_loss(new, old, wanted, 0.0, 2.0)
    assert float(plain) == pytest.approx(0.5 * (1.0 + 0.64) / 2)


def test_whitening_explained_variance_and_likelihood_by_hand() -> None:
    assert whitening(2, 4.0, 10.0) == (2.0, 1.0)
    assert whitening(3, 6.0, 12.0) == (2.0, 0.0) and whitening(1, 5.0, 25.0) == (0.0, 1.0)
    wanted = torch.tensor([1.0, 3.0])
    assert explained_variance(torch.tensor([1.0, 3.0]), wanted) == 1.0
    assert explained_variance(torch.tensor([2.0, 2.0]), wanted) == 0.0
    assert explained_variance(torch.tensor([3.0, 1.0]), wanted) == pytest.approx(-3.0)
    assert explained_variance(torch.tensor([3.0, 1.0]), torch.ones(2)) == 0.0
    assert float(likelihood_loss(torch.tensor([-1.0, -3.0]), 4.0)) == 1.0


def test_an_episode_that_engine_and_trainer_see_differently_is_left_out() -> None:
    assert kept(torch.tensor([-1.0, -2.0]), torch.tensor([-1.4, -1.6]))
    assert not kept(torch.tensor([-1.0, -2.0]), torch.tensor([-2.0, -3.0]))
    actor = tiny()
    good, bad = episodes_of(actor, [3.0, -1.0])
    (one,) = bad.samples
    shifted = replace(one, logprobs=tuple(p - 1.0 for p in one.logprobs))
    bad = replace(bad, samples=(shifted,))
    found = prepare([good, bad], actor, None, Estimates(), Alone())
    assert len(found.steps) == 1 and found.figures["mismatched"] == 0.5
    assert found.figures["engine_gap"] == pytest.approx(1.0, abs=1e-3)


def test_infrastructure_is_left_out_and_other_ends_are_kept_apart() -> None:
    actor = tiny()
    episodes = episodes_of(actor, [3.0, -1.0, 1.0])
    ends = ("answered", "infrastructure", "turns")
    made = [replace(e, end=end) for e, end in zip(episodes, ends, strict=True)]
    assert [e.counts for e in made] == [True, False, True]
    unknown = replace(episodes[0], reward=None)
    assert not unknown.counts and replace(unknown, end="context").counts
    assert len(prepare(made, actor, None, Estimates(), Alone()).steps) == 2


def test_probabilities_are_of_the_choices_that_there_were() -> None:
    actor, one = tiny(), sample(5)
    with torch.no_grad():
        logits = actor(torch.tensor([one.ids])).logits[0]
    found, entropy = action_logprobs(actor, batch_of([one, sample(6, 3)]))
    for n, (place, among) in enumerate(zip(one.actions, one.allowed, strict=True)):
        choice = torch.log_softmax(logits[place - 1, list(among)], 0)
        assert float(found[n]) == pytest.approx(
            float(choice[among.index(one.ids[place])]), abs=1e-5
        )
        assert float(entropy[n]) == pytest.approx(float(-(choice.exp() * choice).sum()), abs=1e-5)
    free = replace(one, allowed=())
    found, _ = action_logprobs(actor, batch_of([free]))
    place = one.actions[0]
    whole = torch.log_softmax(logits[place - 1], 0)[one.ids[place]]
    assert float(found[0]) == pytest.approx(float(whole), abs=1e-5)


def test_text_of_tools_never_enters_a_loss() -> None:
    """The gradient of the head's rows for ids that only tools wrote is zero, and one action token moves the loss."""
    actor, one = tiny(), sample(8)
    said = {i for among in one.allowed for i in among}
    only_heard = sorted(set(one.ids) - said)
    assert only_heard
    found, _ = action_logprobs(actor, batch_of([one]))
    assert len(found) == sum(one.spoken)
    likelihood_loss(found, 1.0).backward()
    gradient = actor.lm_head.weight.grad
    assert gradient[only_heard].abs().max() == 0 and gradient[sorted(said)].abs().max() > 0


def learning(model: Any, optimizer: torch.optim.Optimizer, rules: Rules | None = None) -> Learning:
    """Alone, in an order that is always the same."""
    return Learning(model, optimizer, rules or Rules(), Alone(), random.Random(0))


def test_a_batch_in_pieces_has_the_gradients_of_the_whole() -> None:
    samples = [sample(n, 1 + n % 4) for n in range(7)]
    gradients = []
    for ids in (10_000, 40):
        actor = tiny(1)
        optimizer = torch.optim.SGD(actor.parameters(), lr=0.0)
        rules = Rules(epochs=1, minibatches=1, ids=ids, gradient_norm=1e9)
        update_likelihood(learning(actor, optimizer, rules), samples)
        gradients.append(torch.cat([p.grad.reshape(-1) for p in actor.parameters()]))
    assert torch.allclose(*gradients, atol=1e-6)


def test_groups_hold_no_more_ids_than_they_may_and_every_sample_once() -> None:
    samples = [sample(n, 1 + n % 5) for n in range(20)]
    groups = grouped(samples, 90)
    assert sorted(n for g in groups for n in g) == list(range(20))
    for group in groups:
        longest = max(len(samples[n].ids) for n in group)
        assert len(group) == 1 or longest * len(group) <= 90


def attempts() -> list[Sample]:
    """Conversations of which several begin alike, one says nothing, and one is alone."""
    found = []
    for number, (start, turns) in enumerate([(4, 2), (9, 1), (4, 3), (6, 2), (9, 4), (4, 1)]):
        own, begun = sample(number, turns), sample(100 + start, 1, tool=start)
        first = own.spoken.index(True)
        prompt = begun.ids[: start + 1]
        found.append(
            replace(
                own,
                ids=(*prompt, *own.ids[first:]),
                spoken=(*[False] * len(prompt), *own.spoken[first:]),
            )
        )
    return [*found, Sample(found[0].ids[:5], (False,) * 5)]


def test_a_start_that_is_read_once_gives_what_each_conversation_gives_alone() -> None:
    actor, critic, samples = tiny(1), critic_of(tiny(2)), attempts()
    torch.nn.init.normal_(critic.score.weight)
    assert can_share(actor) and can_share(critic)
    apart, whole = batch_of(samples, share=True), batch_of(samples)
    assert apart.starts is not None and len(apart.starts.ids) < len(samples)
    for mine, theirs in (
        (action_logprobs(actor, apart), action_logprobs(actor, whole)),
        (action_values(critic, apart), action_values(critic, whole)),
    ):
        for one, other in zip(mine, theirs, strict=True):
            assert one.shape == other.shape and torch.allclose(one, other, atol=1e-5)
    gradients = []
    for one in (apart, whole):
        actor.zero_grad()
        action_logprobs(actor, one)[0].square().sum().backward()
        gradients.append(torch.cat([p.grad.reshape(-1) for p in actor.parameters()]))
    assert torch.allclose(*gradients, atol=1e-4, rtol=1e-4) and gradients[0].abs().max() > 0.1


def test_an_update_is_the_same_whether_starts_are_read_once_or_with_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    after = []
    for may in (True, False):
        monkeypatch.setattr(batch, "can_share", lambda _, may=may: may)
        monkeypatch.setattr(batch, "MASKED", 0.01)
        actor = tiny(1)
        rules = Rules(epochs=2, minibatches=2, ids=60)
        figures = update_likelihood(
            learning(actor, torch.optim.SGD(actor.parameters(), lr=0.1), rules), attempts()[:-1]
        )
        after.append((figures["loss"], torch.cat([p.reshape(-1) for p in actor.parameters()])))
    assert after[0][0] == pytest.approx(after[1][0], rel=1e-5)
    assert torch.allclose(after[0][1], after[1][1], atol=1e-5)


def test_attempts_that_begin_alike_are_learnt_from_together_and_starts_are_counted_once() -> None:
    samples = attempts()
    groups = grouped(samples, 60, share=True)
    assert sorted(n for g in groups for n in g) == list(range(len(samples)))
    for group in groups:
        starts = {start_of(samples[n]) for n in group}
        longest = max(len(samples[n].ids) - len(start_of(samples[n])) for n in group)
        ids = len(starts) * max(map(len, starts)) + len(group) * longest
        assert len(group) == 1 or ids <= 60
    assert [0, 2, 5] in [sorted(set(group) & {0, 2, 5}) for group in grouped(samples, 500, True)]
    nothing = torch.zeros(0)
    steps = [Step(one, nothing, nothing, nothing, nothing) for one in samples[:-1]]
    assert sorted(map(len, update._together(steps, 2))) == [1, 2, 3]
    assert sorted(map(len, update._together(steps, 4))) == [1] * 6


def test_starts_are_read_apart_where_they_are_most_of_it() -> None:
    actor, samples = tiny(), attempts()
    assert not planned(samples, 500, [actor])[1]  # what follows is as long
    short = [
        replace(one, ids=one.ids[:9], spoken=(*[False] * 8, True), allowed=one.allowed[:1])
        for one in [samples[4]] * 6
    ]
    groups, share = planned(short, 500, [actor])
    assert share and groups == grouped(short, 500, share=True)
    with_less_memory(actor)
    assert planned(short, 500, [actor]) == (grouped(short, 500), False)


def test_a_model_that_recomputes_its_layers_reads_whole_conversations() -> None:
    actor = tiny()
    with_less_memory(actor)
    assert not can_share(actor) and not can_share(torch.nn.Linear(2, 2))


def test_an_update_makes_what_was_good_likelier_and_what_was_bad_less_likely() -> None:
    actor = tiny(2)
    episodes = episodes_of(actor, [3.0, -1.0, 3.0, -1.0])
    ready = prepare(episodes, actor, None, Estimates(), Alone())
    optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    figures = update_actor(learning(actor, optimizer), ready.steps)
    after = prepare(episodes, actor, None, Estimates(), Alone())
    moved = [float((b.old - a.old).sum()) for a, b in zip(ready.steps, after.steps, strict=True)]
    assert moved[0] > 0 > moved[1] and moved[2] > 0 > moved[3]
    assert figures["entropy"] > 0 and figures["kl"] >= 0 and 0.5 < figures["ratio"] < 1.5


def test_a_critic_begins_at_zero_and_learns_what_episodes_come_to() -> None:
    actor = tiny(3)
    critic = critic_of(actor)
    episodes = episodes_of(actor, [3.0, -1.0, 1.0])
    ready = prepare(episodes, actor, critic, Estimates(), Alone())
    assert all(float(step.values.abs().max()) == 0.0 for step in ready.steps)
    optimizer = torch.optim.Adam(critic.parameters(), lr=3e-3)
    rules = Rules(epochs=60, minibatches=1, clip=Clip(value=0.0))
    update_critic(learning(critic, optimizer, rules), ready.steps)
    after = prepare(episodes, actor, critic, Estimates(), Alone())
    assert after.figures["explained_variance"] > 0.9 > 0.0 == ready.figures["explained_variance"]


def test_a_loss_that_is_not_a_number_changes_nothing() -> None:
    actor = tiny(4)
    ready = prepare(episodes_of(actor, [3.0, -1.0]), actor, None, Estimates(), Alone())
    broken = [replace(s, advantages=s.advantages * math.nan) for s in ready.steps]
    before = {name: value.clone() for name, value in actor.state_dict().items()}
    optimizer = torch.optim.Adam(actor.parameters(), lr=1e-2)
    with pytest.raises(NotANumber, match="the loss is nan"):
        update_actor(learning(actor, optimizer), broken)
    assert all(torch.equal(before[name], value) for name, value in actor.state_dict().items())


def test_every_process_has_its_share() -> None:
    one, two = Alone(), Alone()
    one.world = two.world = 2
    two.rank = 1
    assert share(range(5), one) == [0, 2, 4] and share(range(5), two) == [1, 3]
