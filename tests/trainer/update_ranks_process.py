"""One of several processes that make one update together: writes the weights that it has afterwards."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import replace

import torch
from safetensors.torch import save_file
from test_ppo import episodes_of, sample, tiny

from trainer.policy.lora import ACTOR, Adapted, Lora, Shared
from trainer.ppo.prepare import Estimates, prepare
from trainer.ppo.ranks import Accelerated, Ranks, share
from trainer.ppo.update import Learning, Rules, update_actor

REWARDS = [3.0, -1.0, 1.0, 2.0, -1.0]


def updated(ranks: Ranks, adapters: bool = False) -> Mapping[str, torch.Tensor]:
    """The tensors of an actor, or of its adapter, after one update on its share of episodes of unequal length."""
    actor = tiny(6)
    every = episodes_of(actor, REWARDS)
    if adapters:
        actor = Adapted(Shared(actor, Lora(rank=4), 0), ACTOR)
    longer = [replace(e, samples=e.samples) for e in every]
    assert len({len(sample(n, 1 + n % 3).ids) for n in range(3)}) > 1
    ready = prepare(share(longer, ranks), actor, None, Estimates(), ranks)
    optimizer = torch.optim.SGD(actor.parameters(), lr=0.1)
    rules = Rules(epochs=1, minibatches=1, gradient_norm=1e9)
    update_actor(Learning(actor, optimizer, rules, ranks, random.Random(0)), ready.steps)
    made: Mapping[str, torch.Tensor] = actor.state_dict()
    return made


if __name__ == "__main__":
    torch.set_num_threads(1)
    ranks, adapters = Accelerated(), sys.argv[2] == "adapters"
    found = {name: tensor.contiguous() for name, tensor in updated(ranks, adapters).items()}
    save_file(found, f"{sys.argv[1]}/{sys.argv[2]}-{ranks.rank}.safetensors")
