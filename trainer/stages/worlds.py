"""The worlds that a configuration names."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from sandbox.task.task import Task
from trainer.rollout.held_out import HeldOut, to_validate
from trainer.rollout.table_world import TableWorld
from trainer.rollout.world import World
from trainer.stages.config import BadConfig, WorldSettings, held_out_of
from trainer.world.families import family_of
from trainer.world.files import read
from trainer.world.rows import Table
from trainer.world.sources import NoTasks, Region, sources


def world_of(settings: WorldSettings, training: bool = True) -> World:
    """Raises `BadConfig` where there is no such world, or nothing in it, `WorldFailed` where it cannot be here.

    training: whether it is trained in; one for evaluation alone may have all of its tasks held out, and starts later.
    It validates nothing: what learns there from all that is not held out goes on doing so.
    """
    if settings.kind == "factory":
        return _made(settings)
    make = _tables if settings.kind == "tables" else _judge
    try:
        return make(settings, held_out_of(settings), training)
    except ValueError as error:
        raise BadConfig(f"world: {error}") from None


def _tables(settings: WorldSettings, held_out: HeldOut, training: bool) -> World:
    validated = settings.validated if training else 0.0
    return TableWorld(_read(settings), held_out, settings.side_by_side, training, validated)


def _read(settings: WorldSettings) -> list[Table]:
    if not settings.paths:
        raise BadConfig("world: paths names no files; `cuda-agent-train measure` makes tables")
    try:
        return read([Path(path) for path in settings.paths])
    except (OSError, ValueError) as error:
        raise BadConfig(f"world: {error}; `cuda-agent-train measure` makes tables") from None


def _judge(settings: WorldSettings, held_out: HeldOut, training: bool) -> World:
    from trainer.rollout.judge_world import JudgeWorld

    tasks = {task.digest[:24]: task for task in tasks_of(settings)}
    wrong = [name for name, task in tasks.items() if task.target != settings.device]
    if wrong or not tasks:
        raise BadConfig(
            f"world: {len(wrong)} of {len(tasks)} tasks are not for device {settings.device!r}"
        )
    families = {name: family_of(task) for name, task in tasks.items()}
    away = held_out.families(list(families.values()))
    left = [family for family in families.values() if family not in away]
    kept = to_validate(left, settings.validated if training else 0.0)
    test = {name: task for name, task in tasks.items() if families[name] in away}
    validation = {name: task for name, task in tasks.items() if families[name] in kept}
    train = {name: task for name, task in tasks.items() if families[name] not in away | kept}
    if training and not train:
        validated = f" and validated = {settings.validated:g}" if settings.validated else ""
        raise BadConfig(
            f"world: with held_out = {settings.held_out:g}{validated} no task is left to train on; a share of 1 is for "
            "[eval.world] alone"
        )
    world = JudgeWorld(settings.device, train, test, settings.side_by_side, validation)
    if training:
        world.open()  # what is missing is said before anything is learnt
    return world


def tasks_of(settings: WorldSettings) -> Sequence[Task]:
    """The tasks of tables (.parquet and runs' folders), and of files of regions (.jsonl, .json)."""
    plain = [path for path in settings.paths if not path.endswith((".json", ".jsonl"))]
    regions = [Path(path) for path in settings.paths if path not in plain]
    found = [table.parsed for table in _read(WorldSettings(paths=tuple(plain)))] if plain else []
    more = sources(regions) if regions else []
    if isinstance(more, NoTasks):
        raise BadConfig(f"world: {more.reason}")
    return [*found, *(Task.from_json(one.task) for one in more if isinstance(one, Region))]


def _made(settings: WorldSettings) -> World:
    module, _, name = settings.factory.partition(":")
    try:
        make = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadConfig(f"world: factory {settings.factory!r} cannot be had: {error}") from None
    world: World = make(settings)
    return world
