"""Conversations of unequal length as padded batches of bounded size, and the model's word on their action tokens.

Memory: a batch holds at most ``most`` ids, pads included (or one conversation that is longer by itself), attention uses
no mask of length squared, layers are recomputed on the way back, and logits are only made for action tokens, in pieces.
So an update takes a few times `ids * hidden * 4` bytes for each layer, and `PIECE * vocabulary * 4` for logits.

Attempts at a task begin with the same prompt, which is most of their ids. A small model reads it once for all of them
(`Starts`): what follows looks back at its keys and values. That takes a mask, of what follows times all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from cuda_agent_backend.agent.policies.trained.cache import looks_at_all
from cuda_agent_backend.agent.policies.trained.sampler import cache_name
from trainer.ppo.episode import Sample

PIECE = 1024
"""Action tokens whose logits are made at once."""
MASKED = 2.0
"""Times that an id takes with a mask, of what it takes without, at some hundred ids a conversation on a processor."""
NOT_ALLOWED = -1e30
"""The logit of an id that could not have been drawn."""


@dataclass(frozen=True)
class Starts:
    """What conversations begin with, up to the first action token. ids: (starts, places), padded on the right. length:
    of each, (starts,). of: the start of each row of the batch, (rows,)."""

    ids: Tensor
    length: Tensor
    of: Tensor


@dataclass(frozen=True)
class Batch:
    """ids: (rows, places), padded on the right; without the starts where these are apart. row, before: of each action
    token, (tokens,), its row, and where the state before it is (see `hidden_states`); chosen: its id. last: where the
    state of each row's last id is, (rows,).

    allowed: (tokens, most choices), padded with -1, of the ids that each was drawn from; None where any might be.
    """

    ids: Tensor
    row: Tensor
    before: Tensor
    chosen: Tensor
    last: Tensor
    allowed: Tensor | None
    starts: Starts | None = None


def start_of(sample: Sample) -> tuple[int, ...]:
    """The ids before the first action token; all where there is none."""
    first = sample.spoken.index(True) if True in sample.spoken else len(sample.ids)
    return sample.ids[:first]


def planned(
    samples: Sequence[Sample], most: int, models: Sequence[Any]
) -> tuple[list[list[int]], bool]:
    """Groups of samples as `grouped` makes them, and whether starts are read apart: where all of these models can, and
    that leaves so much less to read that it pays for the mask."""
    whole = grouped(samples, most)
    if not all(map(can_share, models)):
        return whole, False
    apart = grouped(samples, most, share=True)
    pays = MASKED * _ids_read(samples, apart, True) < _ids_read(samples, whole, False)
    return (apart, True) if pays else (whole, False)


def _ids_read(samples: Sequence[Sample], groups: Sequence[Sequence[int]], share: bool) -> int:
    """With pads."""
    total = 0
    for group in groups:
        begun = [start_of(samples[n]) if share else () for n in group]
        own = [len(samples[n].ids) - len(b) for n, b in zip(group, begun, strict=True)]
        total += len(group) * max(own) + len(set(begun)) * max(map(len, begun))
    return total


def can_share(model: Any) -> bool:
    """Whether a model may read starts apart: it looks at all places, and keeps what it has read."""
    whole = isinstance(model, PreTrainedModel) and looks_at_all(model.config)
    return whole and not model.is_gradient_checkpointing


def grouped(samples: Sequence[Sample], most: int, share: bool = False) -> list[list[int]]:
    """Numbers of samples in groups of at most ``most`` ids with their pads, like lengths together, longest first.
    share: where starts are read once, like starts together."""
    if share:
        return _grouped_by_start(samples, most)
    order = sorted(range(len(samples)), key=lambda n: (-len(samples[n].ids), n))
    groups: list[list[int]] = []
    for number in order:
        length = len(samples[groups[-1][0]].ids) if groups else 0
        if groups and (len(groups[-1]) + 1) * length <= most:
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def _grouped_by_start(samples: Sequence[Sample], most: int) -> list[list[int]]:
    begun = [start_of(sample) for sample in samples]
    longer = [len(s.ids) - len(b) for s, b in zip(samples, begun, strict=True)]
    order = sorted(range(len(samples)), key=lambda n: (-len(begun[n]), begun[n], -longer[n], n))
    groups: list[list[int]] = []
    starts = set[tuple[int, ...]]()
    width = 0
    for number in order:
        starts, width = starts | {begun[number]}, max(width, longer[number])
        first = len(begun[groups[-1][0]]) if groups else 0
        if groups and len(starts) * first + (len(groups[-1]) + 1) * width <= most:
            groups[-1].append(number)
        else:
            groups.append([number])
            starts, width = {begun[number]}, longer[number]
    return groups


def batch_of(
    samples: Sequence[Sample], device: torch.device | str = "cpu", share: bool = False
) -> Batch:
    """Samples as one batch; action tokens in the order of the samples, and in each of the places. share: read starts
    apart, each once."""
    begun = [start_of(sample) if share else () for sample in samples]
    own = [s.ids[len(b) :] for s, b in zip(samples, begun, strict=True)]
    ids = _padded(own)
    # A state stands before each of the ids where starts are apart: the one of the start's last id.
    where = [
        (row, place - len(b) - (not share))
        for row, (s, b) in enumerate(zip(samples, begun, strict=True))
        for place in s.actions
    ]
    rows, before = torch.tensor(where, dtype=torch.long).reshape(-1, 2).unbind(1)
    chosen = ids[rows, before + (not share)]
    allowed = _choices([c for s in samples for c in s.allowed]) if samples[0].allowed else None
    return Batch(
        ids.to(device),
        rows.to(device),
        before.to(device),
        chosen.to(device),
        torch.tensor([len(part) - (not share) for part in own], device=device),
        None if allowed is None else allowed.to(device),
        _starts(begun, device) if share else None,
    )


def _starts(begun: Sequence[tuple[int, ...]], device: torch.device | str) -> Starts:
    known: dict[tuple[int, ...], int] = {}
    of = [known.setdefault(one, len(known)) for one in begun]
    lengths = [len(one) for one in known]
    parts = (_padded(list(known)), torch.tensor(lengths), torch.tensor(of))
    return Starts(*(part.to(device) for part in parts))


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    ids = torch.zeros(len(rows), max(1, *map(len, rows)), dtype=torch.long)
    for row, some in enumerate(rows):
        ids[row, : len(some)] = torch.tensor(some, dtype=torch.long)
    return ids


def _choices(allowed: Sequence[Sequence[int]]) -> Tensor:
    width = max(map(len, allowed), default=1)
    found = torch.full((len(allowed), width), -1, dtype=torch.long)
    for token, ids in enumerate(allowed):
        found[token, : len(ids)] = torch.tensor(ids)
    return found


def hidden_states(model: Any, batch: Batch) -> Tensor:
    """The body's states, (rows, places, hidden); where starts are apart (rows, 1 + places, hidden), the first of them
    that of the start's last id.

    Padding is on the right and attention looks to the left, so without starts no mask is needed, and none of length
    squared is made.
    """
    if batch.starts is not None:
        return _after_starts(model, batch.ids, batch.starts)
    states: Tensor = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
    return states


def _after_starts(model: Any, ids: Tensor, starts: Starts) -> Tensor:
    (rows, width), device = ids.shape, ids.device
    held = {cache_name(model): DynamicCache()}
    read: Tensor = model.model(input_ids=starts.ids, use_cache=True, **held).last_hidden_state
    (cache,) = held.values()
    cache.batch_select_indices(starts.of)
    lengths = starts.length[starts.of]
    places = torch.arange(starts.ids.shape[1], device=device)
    seen = (places < lengths[:, None])[:, None, :].expand(rows, width, -1)
    earlier = torch.ones(width, width, dtype=torch.bool, device=device).tril()
    mask = torch.cat([seen, earlier.expand(rows, -1, -1)], dim=2)
    more: Tensor = model.model(
        input_ids=ids,
        attention_mask=mask[:, None],
        position_ids=lengths[:, None] + torch.arange(width, device=device),
        use_cache=True,
        **held,
    ).last_hidden_state
    return torch.cat([read[starts.of, lengths - 1][:, None], more], dim=1)


def action_logprobs(model: Any, batch: Batch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability of each action token among those allowed, and the entropy of that choice; both (tokens,)."""
    states = hidden_states(model, batch)[batch.row, batch.before]
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
    before = critic.score(states[batch.row, batch.before]).float()[:, 0]
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
