"""One update of a model: pieces of a minibatch whose gradients add up, one step of the optimizer.

The only place where weights change. A loss or gradient that is not a number raises before they do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainer.ppo.batch import (
    Batch,
    action_logprobs,
    action_values,
    batch_of,
    planned,
    start_of,
)
from trainer.ppo.episode import Sample
from trainer.ppo.losses import Clip, NotANumber, likelihood_loss, policy_loss, value_loss
from trainer.ppo.prepare import Step
from trainer.ppo.ranks import Ranks, add_gradients


@dataclass(frozen=True)
class Rules:
    """Of one update over a batch of episodes.

    epochs, minibatches: how often all is seen, in how many parts. ids: of one piece, pads included. gradient_norm:
    above it gradients are scaled down. entropy: how much the entropy of choices counts as gain.
    """

    epochs: int = 2
    minibatches: int = 2
    ids: int = 16_384
    gradient_norm: float = 1.0
    entropy: float = 0.0
    temperature: float = 1.0
    clip: Clip = field(default_factory=Clip)


@dataclass(frozen=True)
class Learning:
    """What an update works with: a model and its optimizer, what holds for both, and who else learns.

    chance: of the order in which steps are seen; an update draws from it.
    """

    model: Any
    optimizer: torch.optim.Optimizer
    rules: Rules
    ranks: Ranks
    chance: random.Random


Loss = Callable[[Batch, list[Step], float], tuple[Tensor, dict[str, Tensor]]]
"""The loss of a piece, over the total of action tokens, and sums for reports."""


def update_actor(actor: Learning, steps: Sequence[Step]) -> dict[str, float]:
    """PPO on the actor. Figures: loss, clipped share, mean ratio, kl, entropy, gradient norm."""
    rules = actor.rules

    def loss(batch: Batch, part: list[Step], total: float) -> tuple[Tensor, dict[str, Tensor]]:
        new, entropy = action_logprobs(actor.model, batch, rules.temperature)
        old = torch.cat([s.old for s in part]).to(new.device)
        advantages = torch.cat([s.advantages for s in part]).to(new.device)
        found, told = policy_loss(new, old, advantages, rules.clip, total)
        bonus = rules.entropy * entropy.sum() / total
        sums = {
            "clipped": told.clipped,
            "ratio": told.ratio,
            "kl": told.kl,
            "entropy": entropy.sum(),
        }
        return found - bonus, sums

    return _update(actor, steps, loss)


def update_critic(critic: Learning, steps: Sequence[Step]) -> dict[str, float]:
    """The critic's regression on the returns. Figures: loss, clipped share, gradient norm."""

    def loss(batch: Batch, part: list[Step], total: float) -> tuple[Tensor, dict[str, Tensor]]:
        new, _ = action_values(critic.model, batch)
        old = torch.cat([s.values for s in part]).to(new.device)
        wanted = torch.cat([s.returns for s in part]).to(new.device)
        found, clipped = value_loss(new, old, wanted, critic.rules.clip.value, total)
        return found, {"clipped": clipped}

    return _update(critic, steps, loss)


def update_likelihood(actor: Learning, samples: Sequence[Sample]) -> dict[str, float]:
    """Likelihood of action tokens. Figures: loss (mean of a token, in nats), entropy, gradient norm."""

    def loss(batch: Batch, part: list[Step], total: float) -> tuple[Tensor, dict[str, Tensor]]:
        new, entropy = action_logprobs(actor.model, batch)
        return likelihood_loss(new, total), {"entropy": entropy.sum()}

    nothing = torch.zeros(0)
    steps = [Step(sample, nothing, nothing, nothing, nothing) for sample in samples]
    return _update(actor, steps, loss)


def _update(learning: Learning, steps: Sequence[Step], loss: Loss) -> dict[str, float]:
    rules = learning.rules
    learning.model.train()
    sums: dict[str, float] = {}
    tokens = norm = 0.0
    for _ in range(rules.epochs):
        order = _together(steps, rules.minibatches)
        learning.chance.shuffle(order)
        for number in range(rules.minibatches):
            part = [step for few in order[number :: rules.minibatches] for step in few]
            total = _total(part, learning.ranks)
            if not total:
                continue
            found = _gradients(learning, part, loss, total)
            norm = max(norm, _step(learning, found["loss"]))
            tokens += total
            for name, value in found.items():
                sums[name] = sums.get(name, 0.0) + value
    learning.model.eval()
    figures = {name: value / max(1.0, tokens) for name, value in sums.items()}
    return {**figures, "gradient_norm": norm}


def _together(steps: Sequence[Step], minibatches: int) -> list[list[Step]]:
    """What goes into a minibatch as one: all attempts that begin alike, whose prompt is read once then; each by itself
    where that would leave a minibatch empty."""
    by_start: dict[tuple[int, ...], list[Step]] = {}
    for step in steps:
        by_start.setdefault(start_of(step.sample), []).append(step)
    if len(by_start) < minibatches:
        return [[step] for step in steps]
    return list(by_start.values())


def _total(steps: Sequence[Step], ranks: Ranks) -> float:
    """Action tokens of a minibatch, those of all processes."""
    own = float(sum(len(s.sample.actions) for s in steps))
    return float(ranks.sum(torch.tensor([own], dtype=torch.float64))[0])


def _gradients(
    learning: Learning, steps: Sequence[Step], loss: Loss, total: float
) -> dict[str, float]:
    """Leave in the model a minibatch's gradients, summed over its pieces and all processes; the sums over tokens."""
    model, ranks = learning.model, learning.ranks
    model.zero_grad(set_to_none=True)
    names: dict[str, float] = {}
    samples = [s.sample for s in steps]
    groups, share = planned(samples, learning.rules.ids, [model])
    for group in groups:
        part = [steps[n] for n in group]
        batch = batch_of([samples[n] for n in group], ranks.device, share)
        found, sums = loss(batch, part, total)
        found.backward()
        for name, value in {"loss": found * total, **sums}.items():
            names[name] = names.get(name, 0.0) + float(value.detach())
    add_gradients(model.parameters(), ranks)
    every = ranks.everyones(names)
    keys = dict.fromkeys(key for one in every for key in one)
    return {key: sum(one.get(key, 0.0) for one in every) for key in keys}


def _step(learning: Learning, loss: float) -> float:
    """Have the optimizer take a step; the gradients' norm. Raises `NotANumber` before anything changes."""
    parameters, most = learning.model.parameters(), learning.rules.gradient_norm
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, most))
    if not (torch.isfinite(torch.tensor([norm, loss]))).all():
        raise NotANumber(f"the loss is {loss:.3g} and the gradients' norm {norm:.3g}")
    learning.optimizer.step()
    return norm
