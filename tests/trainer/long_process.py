"""One episode of so many ids through sampling, masking and an update, in a process of its own: prints megabytes."""

from __future__ import annotations

import json
import random
import resource
import sys
from typing import Any

import torch

from cuda_agent_backend.agent.policies.trained.sampler import Request, Sampler
from cuda_agent_backend.agent.policies.trained.speech import Speech
from trainer.policy.model import Size, actor_of, config_of, critic_of
from trainer.ppo.batch import with_less_memory
from trainer.ppo.episode import Episode
from trainer.ppo.prepare import Estimates, prepare
from trainer.ppo.ranks import Alone
from trainer.ppo.update import Learning, Rules, update_actor, update_critic
from trainer.rollout.episodes import with_choices

TURNS = 150
LONG = Size(hidden=16, layers=1, heads=1, key_heads=1, head=16, inner=32, window=1 << 18)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(length: int) -> None:
    torch.set_num_threads(1)
    speech = Speech()
    ids = speech.words.ids
    actor = actor_of(config_of(LONG, len(ids), ids["<end>"], ids["<pad>"]), 0)
    critic = critic_of(actor)
    session = Sampler(actor, speech).session()
    heard = speech.ids(["<tool>", "<look>", "<ok>", "<s:0>", "<s:1>"])
    noise = speech.ids([f"d:{n}" for n in range(100)])
    said: list[int] = []
    spoken: list[bool] = []
    logprobs: list[float] = []
    before = peak_mb()
    for turn in range(TURNS):
        fill = length // TURNS - len(heard) - 4
        prompt = [*heard, *(noise[(turn + n) % 100] for n in range(fill)), ids["<assistant>"]]
        said += prompt
        spoken += [False] * len(prompt)
        (found,) = session.generate([Request(0, list(said), f"{turn}")])
        said += found.ids
        spoken += [True] * len(found.ids)
        logprobs += found.logprobs
    sampled = peak_mb()
    sample = with_choices(speech, said, spoken, logprobs)
    for model in (actor, critic):
        with_less_memory(model)
    ready = prepare([Episode((sample,), 3.0, "answered")], actor, critic, Estimates(), Alone())
    optimizers: list[Any] = [torch.optim.AdamW(m.parameters(), lr=1e-4) for m in (actor, critic)]
    rules = Rules(epochs=1, minibatches=1)
    learning = [
        Learning(model, optimizer, rules, Alone(), random.Random(0))
        for model, optimizer in zip((actor, critic), optimizers, strict=True)
    ]
    update_actor(learning[0], ready.steps)
    update_critic(learning[1], ready.steps)
    told = {
        "ids": len(said),
        "actions": sum(spoken),
        "gap": ready.figures["engine_gap"],
        "sampling_mb": sampled - before,
        "all_mb": peak_mb() - before,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]))
