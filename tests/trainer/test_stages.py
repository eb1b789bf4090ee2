"""Stages: they chain, go on after a kill with the same curve, and end with a clear error that loses nothing."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_world
from toy_world import ToyTools, ToyWorld

from cuda_agent_backend.agent.policies.registry import make_policy, missing
from cuda_agent_backend.agent.policies.spec import PolicySpec
from cuda_agent_backend.agent.policies.trained.policy import forget_models
from trainer import command
from trainer.health.alarms import Limits
from trainer.health.journal import read
from trainer.policy.model import ModelSettings
from trainer.ppo.ranks import Alone
from trainer.rollout.held_out import HeldOut
from trainer.stages import checkpoint, runner, steps
from trainer.stages import config as configs
from trainer.stages.config import BadConfig, Config, StageSettings, WorldSettings
from trainer.stages.runner import Run, RunFailed, run_stage

TINY = ModelSettings(hidden=16, layers=1, heads=1, key_heads=1, head=16, inner=32, window=1024)
SHORT = StageSettings(steps=3, episodes=8, attempts=2, judgements=(1, 3), every=2, turns=6)
CONFIG = Config(
    model=TINY,
    alarms=Limits(window=50),
    **dict.fromkeys(("pretrain", "warmup", "rft", "value", "agentic"), SHORT),
    eval=replace(SHORT, temperature=0.0),
)


def run_of(folder: Path, config: Config = CONFIG, world: Any = None) -> Run:
    def world_of(settings: Any, training: bool = True) -> Any:
        return world or ToyWorld()

    return Run(config, folder, Alone(), world_of, lambda text: None)


def curve(folder: Path) -> list[dict[str, float]]:
    found = read(folder / "figures.jsonl")
    return [{n: v for n, v in step.items() if n != "seconds"} for step in found]


def done_until(tmp: Path, stages: Sequence[str]) -> Path:
    for name in stages:
        run_stage(run_of(tmp), name)
    return tmp


@pytest.fixture(scope="module")
def chained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return done_until(tmp_path_factory.mktemp("run"), CONFIG.stages)


def test_all_stages_chain_and_leave_a_policy_that_plays(chained: Path) -> None:
    for name in CONFIG.stages:
        assert (chained / name / "done.json").is_file()
    learnt = [s for s in CONFIG.stages if s != "eval"]
    assert all(len(curve(chained / name)) == 3 for name in learnt)
    figures = curve(chained / "agentic")[-1]
    wanted = (
        "reward", "entropy", "ratio", "kl", "explained_variance", "engine_gap", "cut_off", "spent", "invalid",
        "mismatched", "critic_loss", "gradient_norm",
    )  # fmt: skip
    assert not [name for name in wanted if name not in figures]
    found = json.loads((chained / "eval" / "done.json").read_text())["figures"]
    assert found["3"]["search (order)"]["tasks"] == found["1"]["trained"]["tasks"] == 4
    assert found["3"]["search (order)"]["judgements"] > 0 and found["3"]["bayesian"]["tasks"] == 4
    spec = PolicySpec("trained", str(chained / "policy"))
    assert missing(spec) == ""
    turn = make_policy(spec).act(ToyTools().first(), ())
    assert turn.tokens is not None  # type: ignore[union-attr]
    forget_models()


def test_the_critic_alone_learns_in_value_pretraining(chained: Path) -> None:
    def tensors(stage: str, name: str) -> dict[str, torch.Tensor]:
        path = checkpoint.path_of(chained / stage, 3)
        return checkpoint.load_file(path / name)

    actor = "actor/model.safetensors"
    one, other = tensors("rft", actor), tensors("value", actor)
    assert all(torch.equal(one[name], other[name]) for name in one)
    critic = "critic.safetensors"
    assert tensors("value", critic)["score.weight"].abs().max() > 0


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_value_pretraining_reads_episodes_at_the_temperature_of_their_sampler(
    temperature: float, tmp_path: Path
) -> None:
    """Else what was sampled at another one seems to come from another model, and is left out."""
    run = run_of(tmp_path, replace(CONFIG, value=replace(SHORT, temperature=temperature)))
    learner = runner.new_learner(run, "value")
    learner.actor.lm_head.weight.data.mul_(100.0)  # one that is sure, as a trained one is
    figures = steps.value_step(steps.Stage("value", run.config, ToyWorld(), learner, Alone()), 0)
    assert figures["engine_gap"] < 1e-3 and figures["mismatched"] == 0.0


class Killed(BaseException):
    """As a kill: nothing of ours catches it."""


def killing(monkeypatch: pytest.MonkeyPatch, where: str, when: int) -> None:
    """Have the process end at the ``when``-th time that something is done."""
    owner, name = {"step": (runner, "STEPS"), "save": (checkpoint, "_settle")}.get(
        where, (None, "")
    )
    count = 0
    if where == "step":
        real = steps.STEPS["agentic"]

        def step(stage: Any, number: int) -> Any:
            nonlocal count
            found = real(stage, number)
            count += 1
            if count == when:
                raise Killed
            return found

        monkeypatch.setitem(runner.STEPS, "agentic", step)
        return
    settle = getattr(owner, name)

    def save(folder: Path) -> None:
        nonlocal count
        count += 1
        if count == when:
            raise Killed
        settle(folder)

    monkeypatch.setattr(owner, name, save)


@pytest.mark.parametrize(("where", "when"), [("step", 1), ("step", 3), ("save", 1), ("save", 2)])
def test_a_run_that_was_killed_goes_on_with_the_same_curve(
    chained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, when: int
) -> None:
    shutil.copytree(chained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "agentic")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killing(patch, where, when)
        run_stage(run_of(tmp_path / "run"), "agentic")
    run_stage(run_of(tmp_path / "run"), "agentic")
    assert curve(tmp_path / "run" / "agentic") == curve(chained / "agentic")
    last = [checkpoint.path_of(at / "agentic", 3) for at in (chained, tmp_path / "run")]
    for name in ("critic.safetensors", "optimizer-actor.safetensors", "actor/model.safetensors"):
        assert (last[0] / name).read_bytes() == (last[1] / name).read_bytes()


TOML = f"""
threads = 1
stages = ["pretrain"]
{toy_world.TOML}[pretrain]
steps = 40
episodes = 16
attempts = 1
every = 3
"""


@pytest.mark.slow
def test_a_process_that_is_killed_goes_on_with_the_same_curve(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(TOML)
    here = Path(__file__).parent
    env = {
        "PYTHONPATH": f"{here.parents[1]}:{here}",
        "PATH": "/usr/bin:/bin",
        "OMP_NUM_THREADS": "1",
    }

    def begin(out: str) -> subprocess.Popen[bytes]:
        words = [
            "-m",
            "trainer.command",
            "run",
            str(tmp_path / "run.toml"),
            "--out",
            str(tmp_path / out),
        ]
        return subprocess.Popen(
            [sys.executable, *words], env=env, cwd=here.parents[1], stdout=subprocess.DEVNULL
        )

    assert begin("whole").wait() == 0
    for steps_done in (5, 17):
        process = begin("killed")
        while len(read(tmp_path / "killed" / "pretrain" / "figures.jsonl")) < steps_done:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
        process.wait()
    assert begin("killed").wait() == 0
    assert curve(tmp_path / "killed" / "pretrain") == curve(tmp_path / "whole" / "pretrain")


def test_a_stage_that_is_done_is_not_done_again(chained: Path) -> None:
    def never(settings: Any) -> Any:
        raise AssertionError("a world was made")

    said = run_stage(replace(run_of(chained), world_of=never), "warmup")
    assert said["steps"] == 3


def test_a_full_disk_ends_with_a_clear_error_and_older_checkpoints_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, count = checkpoint._write, 0

    def full(tensors: Any, path: Path) -> None:
        nonlocal count
        count += 1
        if count > 3:  # the second checkpoint
            raise OSError(errno.ENOSPC, "No space left on device")
        write(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write", full)
        with pytest.raises(OSError, match=r"step-000002 cannot be written.*older ones are whole"):
            run_stage(run_of(tmp_path), "pretrain")
    assert checkpoint.steps_in(tmp_path / "pretrain") == [0]
    assert not list((tmp_path / "pretrain").glob("*.new"))
    run_stage(run_of(tmp_path), "pretrain")
    assert len(curve(tmp_path / "pretrain")) == 3


def test_a_loss_that_is_not_a_number_stops_the_run_at_its_last_good_checkpoint(
    chained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(chained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "agentic")
    real = steps.Stage.roll_out

    def poisoned(stage: Any, number: int, single: bool = False) -> Any:
        found = real(stage, number, single)
        if number == 2:
            stage.learner.actor.lm_head.weight.data.fill_(torch.nan)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(steps.Stage, "roll_out", poisoned)
        with pytest.raises(RunFailed, match=r"not numbers.*step-000002"):
            run_stage(run_of(tmp_path / "run"), "agentic")
    assert checkpoint.steps_in(tmp_path / "run" / "agentic")[-1] == 2
    with pytest.raises(RunFailed, match="add --resume-collapsed"):
        run_stage(run_of(tmp_path / "run"), "agentic")
    run_stage(replace(run_of(tmp_path / "run"), resume_collapsed=True), "agentic")
    assert curve(tmp_path / "run" / "agentic") == curve(chained / "agentic")


def test_a_collapsed_run_is_stopped_and_its_bad_checkpoints_are_dropped(
    chained: Path, tmp_path: Path
) -> None:
    shutil.copytree(chained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "warmup")
    (tmp_path / "run" / "config.json").unlink()
    limits = Limits(window=3, least_entropy=10.0)
    collapsing = replace(CONFIG, alarms=limits, warmup=replace(SHORT, steps=9, every=1))
    with pytest.raises(RunFailed, match=r"stopped at step 3: the entropy.*step-000000"):
        run_stage(run_of(tmp_path / "run", collapsing), "warmup")
    assert checkpoint.steps_in(tmp_path / "run" / "warmup") == [0]
    (tmp_path / "run" / "warmup" / "collapsed.json").unlink()
    slower = replace(CONFIG, warmup=replace(SHORT, steps=4, actor_rate=1e-5))
    assert run_stage(run_of(tmp_path / "run", slower), "warmup")["steps"] == 4
    (before,) = (tmp_path / "run" / "config-history.jsonl").read_text().splitlines()
    assert json.loads(before)["alarms"]["least_entropy"] == 10.0


@pytest.mark.parametrize("window", [1, 2, 5, 7, 10])
@pytest.mark.parametrize("every", [1, 2, 3, 5, 10])
def test_a_checkpoint_from_before_the_window_of_an_alarm_is_kept(window: int, every: int) -> None:
    kept = checkpoint.reaching_back(window, every)
    for now in range(window, 60):
        there = list(range(0, now, every))[-kept:]  # an alarm comes before its step is kept
        assert there[0] <= now - window


def test_a_roll_back_lands_before_the_window_of_the_alarm_or_says_that_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_from = 8
    config = replace(
        CONFIG,
        stages=("warmup",),
        alarms=Limits(window=5, failed=0.5),
        warmup=replace(SHORT, steps=20, every=1),
    )
    stage = tmp_path / "warmup"

    def step(_: Any, number: int) -> dict[str, float]:
        return {"failed": float(number >= bad_from)}

    def fails_at(step: int) -> str:
        """What is said as the stage goes on and is stopped, at the third bad step of five."""
        run = replace(run_of(tmp_path, config), resume_collapsed=True)
        with pytest.raises(RunFailed, match=f"stopped at step {step}: 60%") as failed:
            run_stage(run, "warmup")
        return str(failed.value)

    monkeypatch.setitem(runner.STEPS, "warmup", step)
    said = fails_at(11)
    assert f"The last good checkpoint is {stage / 'step-000006'}" in said
    assert checkpoint.steps_in(stage)[-1] == 6
    bad_from = 6
    assert f"The last good checkpoint is {stage / 'step-000004'}" in fails_at(9)
    assert checkpoint.steps_in(stage) == [4]
    bad_from = 4
    said = fails_at(7)
    assert "No checkpoint is left from before step 3" in said and "good checkpoint" not in said
    assert f"To begin the stage anew, remove {stage}." in said
    assert f"the oldest checkpoint, {stage / 'step-000004'}, which may be bad itself" in said
    assert checkpoint.steps_in(stage) == [4]


def shares(**held_out: float) -> Config:
    """Of families: those that a stage's own world holds out, and 0.2 in the run's."""
    worlds = {name: WorldSettings(held_out=share) for name, share in held_out.items()}
    own = {name: replace(SHORT, world=world) for name, world in worlds.items()}
    return replace(CONFIG, stages=(*CONFIG.stages[:-1], "live", "eval"), **own)


def test_what_a_policy_was_kept_from_is_what_all_of_its_stages_were_kept_from() -> None:
    assert shares().held_out("agentic").share == shares(live=0.3).held_out("live").share == 0.2
    assert shares(warmup=0.1).held_out("live").share == 0.1
    assert shares(warmup=0.1).held_out("pretrain").share == 0.2
    assert (
        shares(live=0.0).held_out("agentic").share == 0.2
        and shares(live=0.0).held_out("live").share == 0.0
    )
    assert shares(eval=0.1).held_out("live").share == 0.2
    left_out = replace(shares(warmup=0.1), stages=("pretrain", "agentic"))
    assert left_out.held_out("agentic").share == 0.2
    assert replace(shares(pretrain=0.4), stages=("pretrain",)).held_out("pretrain").share == 0.4


def test_evaluation_on_what_was_trained_on_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text('stages = ["agentic", "eval"]\n[world]\nheld_out = 0.2\nheld_out_part = 3\n')
    assert configs.read(path).held_out("agentic") == HeldOut(0.2, 3)
    worlds = {
        "live": ["stages=['agentic', 'live', 'eval']", "live.world.held_out=0.2"],
        "eval": ["eval.world.held_out=0.2"],
        "more": ["world.held_out_part=0", "eval.world.held_out=0.3"],
    }
    for changes in worlds.values():
        with pytest.raises(BadConfig, match="families that stages before it are trained on"):
            configs.read(path, changes)
    configs.read(path, ["world.held_out_part=0", "eval.world.held_out=0.1"])
    configs.read(path, ["eval.world.held_out=1.0"])
    with pytest.raises(BadConfig, match="no part 5"):
        configs.read(path, ["world.held_out_part=5"])


def test_a_policy_that_was_trained_on_a_tested_family_is_refused(tmp_path: Path) -> None:
    def said(card: Any, world: WorldSettings) -> str:
        (tmp_path / "policy.json").write_text(json.dumps(card))
        return runner._was_trained_on(tmp_path, world)

    part = WorldSettings(held_out=0.2, held_out_part=3)
    assert said(HeldOut(0.2, 3).to_card(), part) == "" == said({}, part)
    assert "held_out_part = 1" in said(HeldOut(0.2, 1).to_card(), part)
    assert said(HeldOut(0.2, 1).to_card(), WorldSettings(held_out=1.0)) == ""
    assert runner._was_trained_on(tmp_path / "none", part) == ""


def test_a_policy_that_stages_kept_from_several_parts_was_kept_from_nothing() -> None:
    own = replace(shares(), world=WorldSettings(held_out=0.2, held_out_part=3))
    assert own.held_out("agentic") == HeldOut(0.2, 3)
    live = replace(own.live, world=WorldSettings(held_out=0.2, held_out_part=2))
    assert replace(own, live=live).held_out("agentic") == HeldOut(0.2, 3)
    assert not replace(own, live=live).held_out("live").share


def test_the_policys_card_has_the_smallest_share_of_its_stages(tmp_path: Path) -> None:
    config = replace(shares(warmup=0.3), stages=("pretrain", "warmup"))
    for name in config.stages:
        run_stage(run_of(tmp_path, config), name)
    card = json.loads((tmp_path / "policy" / "policy.json").read_text())
    assert (card["stage"], card["held_out"]) == ("warmup", 0.2)


def test_a_stage_ends_with_its_judgements(chained: Path, tmp_path: Path) -> None:
    shutil.copytree(chained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "agentic")
    few = replace(CONFIG, agentic=replace(SHORT, steps=9, most_judgements=1))
    run_stage(run_of(tmp_path / "run", few), "agentic")
    assert len(curve(tmp_path / "run" / "agentic")) == 1
    assert run_stage(run_of(tmp_path / "run", few), "agentic")["figures"]


def test_a_world_whose_environments_all_die_stops_the_run(chained: Path, tmp_path: Path) -> None:
    shutil.copytree(chained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "value")
    (tmp_path / "run" / "config.json").unlink()
    dead = ToyWorld(dies=frozenset(ToyWorld().tasks))
    config = replace(CONFIG, alarms=Limits(window=2))
    with pytest.raises(RunFailed, match="100% of episodes were lost"):
        run_stage(run_of(tmp_path / "run", config, dead), "value")
    assert dead.closed


def test_another_configuration_another_run_and_a_stage_too_early_are_refused(
    chained: Path, tmp_path: Path
) -> None:
    with pytest.raises(RunFailed, match="another seed, warmup"):
        other = replace(CONFIG, seed=5, warmup=replace(SHORT, steps=4))
        run_stage(run_of(chained, other), "warmup")
    with pytest.raises(RunFailed, match="pretrain ends, which is not done"):
        run_stage(run_of(tmp_path), "warmup")
    import fcntl

    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunFailed, match="another run works"):
            run_stage(run_of(tmp_path), "pretrain")


def test_a_run_of_a_version_that_knew_fewer_settings_goes_on(chained: Path, tmp_path: Path) -> None:
    shutil.copytree(chained, tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    older = json.loads(path.read_text())
    del older["warmup"]["seeds"], older["live"]
    path.write_text(json.dumps(older))
    assert run_stage(run_of(tmp_path / "run"), "warmup")["steps"] == 3


def test_a_checkpoint_that_was_cut_short_says_what_to_do(chained: Path, tmp_path: Path) -> None:
    shutil.copytree(chained, tmp_path / "run")
    agentic = tmp_path / "run" / "agentic"
    (agentic / "done.json").unlink()
    critic = checkpoint.path_of(agentic, 3) / "critic.safetensors"
    critic.write_bytes(critic.read_bytes()[:100])
    with pytest.raises(checkpoint.Unusable, match="remove its folder"):
        run_stage(run_of(tmp_path / "run"), "agentic")
    shutil.rmtree(critic.parent)
    run_stage(run_of(tmp_path / "run"), "agentic")
    assert curve(agentic) == curve(chained / "agentic")


def test_a_policy_of_another_size_is_refused(chained: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, model=replace(TINY, hidden=32))
    shutil.copytree(chained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "warmup")
    (tmp_path / "run" / "config.json").unlink()
    with pytest.raises(checkpoint.Unusable, match="another size"):
        run_stage(run_of(tmp_path / "run", config), "warmup")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed = ", "is not TOML"),
        ("speed = 1", "there is no 'speed'; there are: seed"),
        ("seed = 'a'", "is 'a'; it is of type int"),
        ("seed = true", "is True; it is of type int"),
        ("stages = ['rft', 'warmup']", "in this order"),
        ("[warmup]\nsteps = 0", "at least 1"),
        ("[warmup]\nepisodes = 5\nattempts = 2", "no multiple"),
        ("[warmup]\nclip = 3", "is a table"),
        ("[warmup]\nreward = 'gold'", "one of outcome, graded, speedup"),
        ("[agentic]\njudgements = [1.5]", "is a list of int"),
        ("[agentic.world]\nkind = 'moon'", "one of tables"),
        ("[eval]\nagainst = ['search']", "is ['search']; it is some of order, bayesian"),
        ("[eval]\nagainst = ['order', 'order']", "some of order, bayesian, each once"),
        ("[eval]\njudgements = [1, 3, 1]", "has a budget twice"),
        ("[agentic]\nsingle = true", "[agentic] single is of [eval] alone"),
    ],
    ids=lambda value: value if " " not in value else "",
)
def test_what_is_wrong_with_a_configuration_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(BadConfig, match=said.replace("[", "\\[")):
        configs.read(path)


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("train_*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_tell_no_larger_budget_than_there_is(path: Path) -> None:
    """The one answer of a warm-up is judged once."""
    assert configs.read(path).warmup.judgements == (1,)


def test_settings_are_changed_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("seed = 1\n[warmup]\nsteps = 2\n")
    changes = ["warmup.steps=5", "rft.reward=speedup", "eval.world.held_out=1.0", "seed=7"]
    found = configs.read(path, changes)
    assert (found.warmup.steps, found.rft.reward, found.seed) == (5, "speedup", 7)
    assert found.eval.world is not None and found.eval.world.held_out == 1.0
    for wrong, said in (
        ("steps", "no change of a setting"),
        ("seed.x=1", "no table"),
        ("a=1", "there is no 'a'"),
    ):
        with pytest.raises(BadConfig, match=said):
            configs.read(path, [wrong])


def test_rivals_of_the_arena_are_read_on_tables_only(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[pretrain]\nrivals = ['ranker']\n[world]\nkind = 'judge'\n")
    with pytest.raises(BadConfig, match="ranker learn from tables, and its world has none"):
        configs.read(path)
    path.write_text("[pretrain]\nrivals = ['nobody']\n")
    with pytest.raises(BadConfig, match="rivals are some of search, chance, random"):
        configs.read(path)


def test_the_command_reads_a_configuration_and_says_what_is_wrong_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        "threads = 1\nstages = ['pretrain']\n[model]\nhidden = 16\nlayers = 1\nheads = 1\nkey_heads = 1\nhead = 16\n"
        "inner = 32\nwindow = 1024\n[world]\nkind = 'factory'\nfactory = 'toy_world:make'\n[pretrain]\nsteps = 1\n"
        "episodes = 4\nattempts = 1\n[pretrain.clip]\nlow = 0.1\n"
    )
    words = ["run", str(path), "--out", str(tmp_path / "out")]
    assert command.main(words) == 0
    assert "pretrain: done" in capsys.readouterr().out
    assert configs.read(path).pretrain.clip.low == 0.1
    path.write_text("[world]\nkind = 'factory'\nfactory = 'nowhere:make'\n")
    assert command.main([*words[:-1], str(tmp_path / "other")]) == command.USAGE
    assert "cannot be had" in capsys.readouterr().err


def test_a_stage_that_alarms_stopped_goes_on_where_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        f"threads = 1\nstages = ['warmup']\n{toy_world.TOML}[alarms]\nwindow = 2\nleast_entropy = 1e9\n[warmup]\n"
        "steps = 3\nepisodes = 4\nattempts = 2\n"
    )
    words = ["run", str(path), "--out", str(tmp_path / "out")]
    for _ in range(2):  # as the alarm comes, and another time
        assert command.main(words) == command.USAGE
        said = capsys.readouterr().err
        assert "warmup was stopped at step 2" in said and "add --resume-collapsed" in said
    well = ["--set", "alarms.least_entropy=0.0", "--resume-collapsed"]
    assert command.main([*words, *well]) == 0
    assert "warmup: done" in capsys.readouterr().out
    assert len(curve(tmp_path / "out" / "warmup")) == 3
