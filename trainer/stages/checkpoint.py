"""Checkpoints: all that a stage needs to go on, in a folder that is there whole or not at all.

    step-000010/actor/     the policy's own folder (see `policies.trained.weights`; of adapters, peft's format)
    step-000010/critic.safetensors, optimizer-actor.safetensors, optimizer-critic.safetensors
    step-000010/state.json the stage, the step, the reward curve's place, and what the run was configured as

Random numbers need no keeping: each step draws from a seed, its stage and its number.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trainer.stages.learner import Learner, Unusable

STATE, KEPT = "state.json", 2
"""Checkpoints of a stage that stay."""


def steps_in(folder: Path) -> list[int]:
    """Steps after which there is a whole checkpoint, in order."""
    found = [p for p in folder.glob("step-*") if (p / STATE).is_file() and not p.suffix]
    return sorted(int(p.name.removeprefix("step-")) for p in found)


def path_of(folder: Path, step: int) -> Path:
    """Where the checkpoint after so many steps is."""
    return folder / f"step-{step:06d}"


def reaching_back(window: int, every: int) -> int:
    """How many checkpoints must stay for one of them to be from before the latest ``window`` steps, with one to spare.
    every: steps between checkpoints."""
    return -(-window // every) + 2


def save(
    learner: Learner, folder: Path, step: int, state: Mapping[str, Any], kept: int = KEPT
) -> Path:
    """Write a checkpoint, then drop older ones. Raises OSError where the disk is full; older ones are whole then."""
    path, new = path_of(folder, step), folder / f"step-{step:06d}.new"
    shutil.rmtree(new, ignore_errors=True)
    try:
        learner.kind.save(learner.actor, dict(state), new / "actor")
        _write(learner.critic.state_dict(), new / "critic.safetensors")
        _write(_tensors(learner.actor_optimizer), new / "optimizer-actor.safetensors")
        _write(_tensors(learner.critic_optimizer), new / "optimizer-critic.safetensors")
        (new / STATE).write_text(json.dumps({**state, "step": step}, indent=1, sort_keys=True))
        _settle(new)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(new, ignore_errors=True)
        raise OSError(
            f"the checkpoint {path} cannot be written: {error}; older ones are whole"
        ) from error
    shutil.rmtree(path, ignore_errors=True)
    new.rename(path)
    for old in steps_in(folder)[:-kept]:
        shutil.rmtree(path_of(folder, old), ignore_errors=True)
    return path


def keep_models(path: Path, to: Path) -> Path:
    """Have the models of a checkpoint, without their optimizers, in another folder under the same name, there whole or
    not at all. Files are linked where the disk can: none of a checkpoint's is ever written into. Raises OSError where
    the disk is full."""
    kept, new = to / path.name, to / f"{path.name}.new"
    shutil.rmtree(new, ignore_errors=True)
    try:
        shutil.copytree(
            path, new, ignore=shutil.ignore_patterns("optimizer-*"), copy_function=_linked
        )
        _settle(new)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise OSError(f"{kept} cannot be written: {error}; what was there is whole") from error
    remove(kept)
    new.rename(kept)
    return kept


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a disk without links
        shutil.copyfile(source, target)


def remove(path: Path) -> None:
    """Remove a checkpoint, such that a kill on the way leaves none that looks whole."""
    (path / STATE).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def load(learner: Learner, path: Path) -> dict[str, Any]:
    """Have a learner be as a checkpoint has it; the checkpoint's state. Raises `Unusable`."""
    try:
        state: dict[str, Any] = json.loads((path / STATE).read_text())
        load_actor(learner, path / "actor")
        learner.critic.load_state_dict(load_file(path / "critic.safetensors"))
        _restore(learner.actor_optimizer, load_file(path / "optimizer-actor.safetensors"))
        _restore(learner.critic_optimizer, load_file(path / "optimizer-critic.safetensors"))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise Unusable(
            f"the checkpoint {path} cannot be read: {error}; remove its folder to go on from the one before"
        ) from error
    return state


def load_actor(learner: Learner, folder: Path) -> None:
    """Have the actor be as a policy's folder has it. Raises `Unusable`."""
    learner.kind.load(learner.actor, folder)


def digest_of(folder: Path) -> str:
    """Names the weights of a policy's folder: equal tensors in equal files have equal names."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:16]


def load_critic(learner: Learner, path: Path) -> None:
    """Have the critic be as a checkpoint has it. Raises `Unusable`."""
    try:
        learner.critic.load_state_dict(load_file(path / "critic.safetensors"))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise Unusable(f"the critic in {path} cannot be read: {error}") from error


def begin_critic(learner: Learner) -> None:
    """Have the critic begin with the actor's body and a score of zero."""
    learner.critic.load_state_dict(learner.kind.new_critic(learner.actor))


def _tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """An optimizer's state by parameter number; learning rates are the configuration's."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value.detach().cpu().contiguous()
        for number, values in state.items()
        for name, value in values.items()
    }


def _restore(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _write(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    save_file({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, path)


def _settle(folder: Path) -> None:
    """Have a folder's files be on the disk before it gets its name."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
