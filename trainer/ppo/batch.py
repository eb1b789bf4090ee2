"""Conversations of unequal length as padded batches of bounded size, and the model's word on their action tokens.

Memory: a batch holds at most ``most`` ids, pads included (or one conversation that is longer by itself), attention uses
no mask of length squared, layers are recomputed on the way back, and logits are only made for action tokens, in pieces.
So an update takes a few times `ids * hidden * 4` bytes for each layer, and `PIECE * vocabulary * 4` for logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trainer.ppo.episode import Sample

PIECE = 1024
"""Action tokens whose logits are made at once."""
NOT_ALLOWED = -1e30
"""The logit of an id that could not have been drawn."""


@dataclass(frozen=True)
class Batch:
    """ids: (rows, places), padded on the right; row, place: of each action token, (tokens,); chosen: its id. last: the
    place of each row's last id, (rows,).

    allowed: (tokens, most choices), padded with -1, of the ids that each was drawn from; None where any might be.
    """

    ids: Tensor
    row: Tensor
    place: Tensor
    chosen: Tensor
    last: Tensor
    allowed: Tensor | None


def grouped(samples: Sequence[Sample], most: int) -> list[list[int]]:
    """Numbers of samples in groups of at most ``most`` ids with their pads, like lengths together, longest first."""
    order = sorted(range(len(samples)), key=lambda n: (-len(samples[n].ids), n))
    groups: list[list[int]] = []
    for number in order:
        length = len(samples[groups[-1][0]].ids) if groups else 0
        if groups and (len(groups[-1]) + 1) * length <= most:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def batch_of(samples: Sequence[Sample], device: torch.device | str = "cpu") -> Batch:
    """Samples as one batch; action tokens in the order of the samples, and in each of the places."""
    places = max(len(s.ids) for s in samples)
    ids = torch.zeros(len(samples), places, dtype=torch.long)
    for row, sample in enumerate(samples):
        ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
    where = [(row, place) for row, s in enumerate(samples) for place in s.actions]
    rows, at = torch.tensor(where, dtype=torch.long).reshape(-1, 2).unbind(1)
    allowed = _choices([c for s in samples for c in s.allowed]) if samples[0].allowed else None
    return Batch(
        ids.to(device),
        rows.to(device),
        at.to(device),
        ids[rows, at].to(device),
        torch.tensor([len(s.ids) - 1 for s in samples], device=device),
        None if allowed is None else allowed.to(device),
    )


def _choices(allowed: Sequence[Sequence[int]]) -> Tensor:
    width = max(map(len, allowed), default=1)
    found = torch.full((len(allowed), width), -1, dtype=torch.long)
    for token, ids in enumerate(allowed):
        found[token, : len(ids)] = torch.tensor(ids)
    return found


def hidden_states(model: Any, batch: Batch) -> Tensor:
    """The body's states, (rows, places, hidden).

    Padding is on the right and attention looks to the left, so no mask is needed, and none of length squared is made.
    """
    states: Tensor = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    return states


def action_logprobs(model: Any, batch: Batch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability of each action token among those allowed, and the entropy of that choice; both (tokens,)."""
    states = hidden_states(model, batch)[batch.row, batch.place - 1]
    found = []
    for start in range(0, len(states), PIECE):
        part = slice(start, start + PIECE)
        allowed = None if batch.allowed is None else batch.allowed[part]
        given = (model.lm_head, states[part], batch.chosen[part], allowed, temperature)
        found.append(
            checkpoint(_piece, *given, use_reentrant=False)
            if torch.is_grad_enabled()
            else _piece(*given)
        )
    if not found:
        return states.new_zeros(0), states.new_zeros(0)
    logprobs, entropies = zip(*found, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _piece(
    head: Any, states: Tensor, chosen: Tensor, allowed: Tensor | None, temperature: float
) -> tuple[Tensor, Tensor]:
    logits = head(states).float() / temperature
    if allowed is not None:
        picked = logits.gather(1, allowed.clamp(min=0)).masked_fill(allowed < 0, NOT_ALLOWED)
        among = torch.log_softmax(picked, dim=-1)
        own = among.masked_fill(allowed != chosen[:, None], 0.0).sum(dim=-1)
    else:
        among = torch.log_softmax(logits, dim=-1)
        own = among.gather(1, chosen[:, None])[:, 0]
    return own, -(among.exp() * among.clamp(min=NOT_ALLOWED)).sum(dim=-1)


def action_values(critic: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The critic's value before each action token, (tokens,), and after each row's last id, (rows,)."""
    states = hidden_states(critic, batch)
    rows = torch.arange(len(batch.ids), device=states.device)
    before = critic.score(states[batch.row, batch.place - 1]).float()[:, 0]
    after = critic.score(states[rows, batch.last]).float()[:, 0]
    return before, after


def with_less_memory(model: Any) -> None:
    """Have a model's layers recomputed on the way back rather than kept."""
    how = {"use_reentrant": False}
    if hasattr(
        model, "activation_checkpointing_enable"
    ):  # the name that came in the course of transformers 5
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=how)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
