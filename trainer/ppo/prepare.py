"""From episodes to what an update learns from: advantages and returns by action token, under the models as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trainer.ppo.advantages import Outcome, gae, lambda_of, returns, whitening
from trainer.ppo.batch import action_logprobs, action_values, batch_of, planned
from trainer.ppo.episode import Episode, Sample
from trainer.ppo.losses import NotANumber, explained_variance, kept
from trainer.ppo.ranks import Ranks


@dataclass(frozen=True)
class Estimates:
    """How advantages are made.

    lambda_critic: for returns. bootstrap: whether an episode that a limit outside its task cut off is worth what the
    critic says of its last place, and not its reward. ids: of one batch.
    """

    lambda_critic: float = 1.0
    bootstrap: bool = True
    whiten: bool = True
    ids: int = 32_768


@dataclass(frozen=True)
class Step:
    """One sample with what is known of its action tokens, each (tokens,), on the processor."""

    sample: Sample
    old: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor


@dataclass(frozen=True)
class Prepared:
    """What an update learns from. figures: of these episodes, by name."""

    steps: tuple[Step, ...]
    figures: dict[str, float]


@torch.no_grad()
def prepare(
    episodes: Sequence[Episode],
    actor: Any,
    critic: Any | None,
    how: Estimates,
    ranks: Ranks,
    temperature: float = 1.0,
) -> Prepared:
    """Steps of the episodes that count. Without a critic all values are zero.

    Raises `NotANumber` where a model says what is no number: such episodes would be left out without a word.
    """
    counting = [e for e in episodes if e.counts]
    samples = [s for e in counting for s in e.samples]
    old, values, after = evaluate(samples, actor, critic, how.ids, ranks.device, temperature)
    fine = all(bool(torch.isfinite(part).all()) for part in (*old, *values))
    if not all(ranks.everyones(fine)):  # one process that raises alone leaves the others waiting
        raise NotANumber("the actor's probabilities or the critic's values are not numbers")
    steps, gaps, dropped, at = [], [0.0], 0, 0
    for episode in counting:
        here = slice(at, at + len(episode.samples))
        at = here.stop
        engine = torch.tensor([p for s in episode.samples for p in s.logprobs])
        trainer = torch.cat(old[here])
        if engine.numel():
            gaps.append(float((engine - trainer).abs().max()))
        if not kept(engine, trainer):
            dropped += 1
            continue
        steps += _steps(episode, old[here], values[here], after[here.stop - 1], how)
    figures = _figures(steps, ranks)
    figures["engine_gap"] = max(ranks.everyones(max(gaps)))
    figures["mismatched"] = sum(ranks.everyones(dropped)) / max(
        1, sum(ranks.everyones(len(counting)))
    )
    return Prepared(_whitened(steps, ranks) if how.whiten else tuple(steps), figures)


def evaluate(
    samples: Sequence[Sample],
    actor: Any | None,
    critic: Any | None,
    ids: int,
    device: torch.device,
    temperature: float = 1.0,
) -> tuple[list[Tensor], list[Tensor], list[float]]:
    """Log-probabilities and values of each sample's action tokens, and the value after its last id; zeros where there
    is no such model."""
    after = [0.0] * len(samples)
    old: list[Tensor] = [torch.zeros(len(s.actions)) for s in samples]
    values: list[Tensor] = [torch.zeros(len(s.actions)) for s in samples]
    groups, share = planned(samples, ids, [m for m in (actor, critic) if m is not None])
    for group in groups:
        batch = batch_of([samples[n] for n in group], device, share)
        lengths = [len(samples[n].actions) for n in group]
        if actor is not None:
            found, _ = action_logprobs(actor, batch, temperature)
            for n, part in zip(group, found.cpu().split(lengths), strict=True):
                old[n] = part
        if critic is not None:
            before, ends = action_values(critic, batch)
            for n, part, end in zip(group, before.cpu().split(lengths), ends.tolist(), strict=True):
                values[n], after[n] = part, end
    return old, values, after


def outcome_of(episode: Episode, after: float, bootstrap: bool) -> Outcome:
    """What an episode pays. A limit that is no part of its task ends nothing: what was reached by then may be the best
    that there is, in which case its reward stands, and otherwise the critic says what it was worth to go on."""
    reward = episode.reward
    cut_off = episode.end == "context" and (reward is None or reward < 0)
    if cut_off and bootstrap:
        return Outcome(0.0, after)
    return Outcome(-1.0 if reward is None else reward)


def _steps(
    episode: Episode,
    old: Sequence[Tensor],
    values: Sequence[Tensor],
    after: float,
    how: Estimates,
) -> list[Step]:
    """Of one episode, whose samples are one stretch of action tokens."""
    line = torch.cat(list(values)).tolist()
    outcome = outcome_of(episode, after, how.bootstrap)
    advantages = torch.tensor(gae(line, outcome, lambda_of(len(line))))
    wanted = torch.tensor(returns(line, outcome, how.lambda_critic))
    lengths = [len(part) for part in values]
    parts = zip(
        episode.samples, old, values, advantages.split(lengths), wanted.split(lengths), strict=True
    )
    return [Step(*part) for part in parts if len(part[1])]


def _figures(steps: Sequence[Step], ranks: Ranks) -> dict[str, float]:
    values = torch.cat([s.values for s in steps]) if steps else torch.zeros(0)
    wanted = torch.cat([s.returns for s in steps]) if steps else torch.zeros(0)
    both = _joined(ranks.everyones((values.tolist(), wanted.tolist())))
    return {
        "explained_variance": explained_variance(*both),
        "action_tokens": float(both[0].numel()),
    }


def _joined(pairs: Sequence[tuple[list[float], list[float]]]) -> list[Tensor]:
    return [torch.tensor([x for pair in pairs for x in pair[n]]) for n in (0, 1)]


def _whitened(steps: Sequence[Step], ranks: Ranks) -> tuple[Step, ...]:
    """With advantages of mean 0 and deviation 1 over all processes' action tokens."""
    every = torch.cat([s.advantages for s in steps]) if steps else torch.zeros(0)
    sums = torch.stack([torch.tensor(float(every.numel())), every.sum(), every.square().sum()])
    mean, scale = whitening(*ranks.sum(sums.double()).tolist())
    return tuple(replace(s, advantages=(s.advantages - mean) * scale) for s in steps)
