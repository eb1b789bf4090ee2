"""The same features, a small network instead of trees: two hidden layers, and ListNet's loss (Cao et al., 2007)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sandbox.task.flags import threads
from trainer.rivals.features import Vocabulary
from trainer.rivals.protocol import Play, View, then_rest
from trainer.rivals.ranker import Data, slower
from trainer.world.rows import Table

HIDDEN, STEPS, RATE, DECAY = 64, 300, 3e-3, 1e-4
SHARP = 0.1
"""The target of the loss is a softmax of minus the logarithm of times over this: 10 % slower is worth 1/e as much."""


class Network:
    """Scores of a vocabulary's rows."""

    def __init__(self, width: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.layers = nn.Sequential(
            nn.Linear(width, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 1),
        )
        for parameter in self.layers.parameters():
            bound = parameter.shape[-1] ** -0.5
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
        self.mean, self.spread = torch.zeros(width), torch.ones(width)

    def scores(self, x: np.ndarray[Any, Any]) -> Tensor:
        """(rows,) of (rows, width); absent values count as the mean."""
        given = (torch.from_numpy(np.asarray(x, dtype=np.float32)) - self.mean) / self.spread
        found: Tensor = self.layers(torch.nan_to_num(given, nan=0.0).clamp(-5, 5)).squeeze(-1)
        return found

    def fit(self, data: Data) -> None:
        """Full batches: every table counts the same, whatever its number of rows."""
        held = np.ma.masked_invalid(data.x)
        self.mean = torch.from_numpy(np.asarray(held.mean(0).filled(0.0), dtype=np.float32))
        spread = np.asarray(held.std(0).filled(0.0), dtype=np.float32)
        self.spread = torch.from_numpy(np.where(spread > 0, spread, 1.0).astype(np.float32))
        target = torch.from_numpy(-slower(data.share) / SHARP).float()
        owner = torch.repeat_interleave(torch.arange(len(data.groups)), torch.tensor(data.groups))
        wanted = torch.exp(_log_softmax(target, owner, len(data.groups)))
        optimizer = torch.optim.AdamW(self.layers.parameters(), lr=RATE, weight_decay=DECAY)
        for _ in range(STEPS):
            optimizer.zero_grad()
            logs = _log_softmax(self.scores(data.x), owner, len(data.groups))
            loss = -(wanted * logs).sum() / len(data.groups)
            loss.backward()
            optimizer.step()


def _log_softmax(values: Tensor, owner: Tensor, groups: int) -> Tensor:
    """Within each group; (rows,) of (rows,) and the group of each row."""
    most = torch.full((groups,), -torch.inf).scatter_reduce(0, owner, values, "amax")
    shifted = values - most.detach()[owner]
    total = torch.zeros(groups).index_add(0, owner, shifted.exp())
    return shifted - total.log()[owner]


class NetworkRanker:
    """Rows by what the network thinks of them."""

    name = "ranker-torch"

    def __init__(self) -> None:
        self.network: Network | None = None
        self.vocabulary: Vocabulary | None = None

    def fit(self, tables: Sequence[Table], seed: int) -> None:
        """Train, on one thread: so small a model gains nothing from more."""
        data = Data(tables)
        self.vocabulary, self.network = data.vocabulary, None
        if len(data.groups) < 2:
            return
        with threads(1):
            self.network = Network(data.vocabulary.width, seed)
            self.network.fit(data)

    def play(self, view: View, seed: int) -> Play:
        """See `Rival`."""
        if self.network is None or self.vocabulary is None:
            return then_rest((), view)
        with torch.no_grad():
            scores = self.network.scores(self.vocabulary.rows(view)).tolist()
        return then_rest(sorted(view.order, key=lambda row: -scores[row]), view)
