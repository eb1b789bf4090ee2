"""The losses, as functions of tensors over action tokens. Each is a sum over tokens, divided by the ``total`` given.

So a batch may come in pieces and on several ranks: the pieces' losses and gradients add up to those of the whole, as
long as ``total`` is the number of action tokens of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GAP_LIMIT = 0.5
"""Of the mean difference of an episode's log-probabilities between trainer and engine, beyond which it is left out."""


class NotANumber(Exception):
    """A probability, a loss or a gradient became NaN or infinite; weights are as they were before it was seen."""


@dataclass(frozen=True)
class Clip:
    """Of the importance ratio: 1 - low to 1 + high; dual: a token's loss at a negative advantage grows no further than
    so many times that; value: how far a value may move from the old one and still learn."""

    low: float = 0.2
    high: float = 0.28
    dual: float = 10.0
    value: float = 0.5


@dataclass(frozen=True)
class Told:
    """Sums over action tokens, for reports. Each (1,)."""

    clipped: Tensor
    ratio: Tensor
    kl: Tensor


def policy_loss(
    new: Tensor, old: Tensor, advantages: Tensor, clip: Clip, total: float
) -> tuple[Tensor, Told]:
    """PPO's clipped loss (Schulman and others, 2017), the clip unequal to both sides (DAPO, Yu and others, 2025), with
    a second clip for negative advantages (Ye and others, 2020). new, old: log-probabilities; all (tokens,).

    kl: from the old policy, which the tokens were drawn from, to the new one, by the estimator r - 1 - log r of the
    ratio r, which is never negative (Schulman, 2020).
    """
    difference = new - old
    ratio = difference.exp()
    inside = ratio.clamp(1 - clip.low, 1 + clip.high)
    gain = torch.minimum(ratio * advantages, inside * advantages)
    gain = torch.where(advantages < 0, torch.maximum(gain, clip.dual * advantages), gain)
    with torch.no_grad():
        kl = ratio - 1 - difference
        told = Told((ratio != inside).sum().float(), ratio.sum(), kl.sum())
    return -gain.sum() / total, told


def value_loss(
    new: Tensor, old: Tensor, wanted: Tensor, clip: float, total: float
) -> tuple[Tensor, Tensor]:
    """Half the squared error, the larger of that of the value and of the value kept within ``clip`` of the old one; and
    how many were clipped. All (tokens,). clip 0: no clipping, as in pretraining."""
    error = (new - wanted).square()
    if not clip:
        return 0.5 * error.sum() / total, torch.zeros((), device=new.device)
    near = old + (new - old).clamp(-clip, clip)
    beyond = (near - wanted).square()
    return 0.5 * torch.maximum(error, beyond).sum() / total, (beyond > error).sum().float()


def likelihood_loss(new: Tensor, total: float) -> Tensor:
    """Minus the log-likelihood of action tokens. (tokens,)"""
    return -new.sum() / total


def kept(engine: Tensor, trainer: Tensor) -> bool:
    """Whether an episode may be learnt from: the geometric mean of the ratio of trainer's to engine's probabilities is
    near 1. Both: log-probabilities of its action tokens, (tokens,)."""
    return bool((trainer - engine).mean().abs() <= GAP_LIMIT) if engine.numel() else True


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - Var(returns - values) / Var(returns): 1 is a perfect critic, 0 a constant, less than 0 one that is worse.

    0 where the returns do not differ, so that nothing can be explained. Both (tokens,).
    """
    if returns.numel() < 2 or (spread := returns.var(correction=0)) < 1e-8:
        return 0.0
    return float(1 - (returns - values).var(correction=0) / spread)
