"""A pretrained model goes through the same stages: its own template, adapters, small checkpoints, and clear errors."""

from __future__ import annotations

import json
import random
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_llm
import torch
from safetensors.torch import load_file
from toy_world import ToyWorld

from cuda_agent_backend.agent.policies import local
from cuda_agent_backend.agent.policies.chat import Chat
from cuda_agent_backend.agent.policies.engine import Sampled
from cuda_agent_backend.agent.policies.registry import make_policy
from cuda_agent_backend.agent.policies.search.policy import SearchPolicy
from cuda_agent_backend.agent.policies.spec import PolicySpec
from sandbox.task.flags import threads
from trainer import command
from trainer.health.journal import read
from trainer.policy.lora import Lora
from trainer.policy.model import ModelSettings
from trainer.policy.standard import Broken, load
from trainer.ppo.prepare import Estimates, prepare
from trainer.ppo.ranks import Alone
from trainer.ppo.update import Learning, Rules, update_actor, update_critic
from trainer.rollout.chat import ChatSampler, ChatVoice
from trainer.rollout.demonstrations import demonstrations
from trainer.rollout.episodes import Plan, Play, roll_out
from trainer.stages import checkpoint, runner
from trainer.stages import command as stages_command
from trainer.stages import config as configs
from trainer.stages.pretrained import FromCheckpoint
from trainer.stages.runner import Run, run_stage

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
ADAPTERS = Lora(rank=4)
STAGE = """
steps = {steps}
episodes = 8
attempts = 2
judgements = [1, 3]
turns = 4
every = 1
rivals = ["search"]
seeds = 0
"""
LEARNING = ("pretrain", "warmup", "rft", "value", "agentic")


def toml(folder: Path, stages: Sequence[str], lora: str = "[model.lora]\nrank = 4") -> str:
    head = (
        f"threads = 1\nstages = {json.dumps(list(stages))}\n[alarms]\nwindow = 50\n"
        f'[model]\ncheckpoint = "{folder}"\nwindow = 4096\nmessage = 64\ndtype = "float32"\n{lora}\n'
        '[world]\nkind = "factory"\nfactory = "tiny_llm:make"\n'
    )
    steps = {name: 2 if name in ("warmup", "agentic") else 1 for name in stages}
    return head + "".join(f"[{name}]{STAGE.format(steps=steps[name])}" for name in stages)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llm.build(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a network fails."""

    def connect(self: Any, address: Any) -> None:
        raise AssertionError(f"a connection to {address}")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket.socket, "connect", connect)


def kind_of(folder: Path, dtype: Any = "float32", lora: Lora | None = ADAPTERS) -> FromCheckpoint:
    if lora is not None:
        pytest.importorskip("peft")
    settings = ModelSettings(
        checkpoint=str(folder), window=4096, message=64, dtype=dtype, lora=lora
    )
    return FromCheckpoint(settings, CPU)


def plans(count: int = 4) -> list[Plan]:
    return [Plan(str(64 << n % 4), f"plan {n}", 3) for n in range(count)]


def curve(folder: Path) -> list[dict[str, float]]:
    return [
        {n: v for n, v in step.items() if n != "seconds"} for step in read(folder / "figures.jsonl")
    ]


@pytest.mark.slow(40)
def test_all_stages_run_from_a_checkpoint_in_the_standard_format(
    folder: Path, tmp_path: Path, offline: None
) -> None:
    pytest.importorskip("peft")
    stages = (*LEARNING, "eval")
    path, out = tmp_path / "run.toml", tmp_path / "run"
    path.write_text(toml(folder, stages))
    assert command.main(["run", str(path), "--out", str(out)]) == 0
    assert all((out / name / "done.json").is_file() for name in stages)
    for name in ("warmup", "value", "agentic"):
        last = curve(out / name)[-1]
        assert last["action_tokens"] > 0 and last["engine_gap"] < 1e-3 and last["mismatched"] == 0
    assert curve(out / "pretrain")[-1]["samples"] > 0
    assert curve(out / "rft")[-1]["kept"] > 0
    found = json.loads((out / "eval" / "done.json").read_text())["figures"]
    assert found["3"]["trained"]["tasks"] == found["3"]["bayesian"]["tasks"] == 4
    adapters_alone(folder, out)
    spoken_by_other_tools(folder, out / "policy")


def adapters_alone(folder: Path, out: Path) -> None:
    """Checkpoints hold no weight of the model, and each stage changed what it is for."""
    base = {p.split("/")[-1] for p in load_file(folder / "model.safetensors")}
    step = checkpoint.path_of(out / "value", 1)
    tensors = {path: load_file(path) for path in step.rglob("*.safetensors")}
    optimizers = {"optimizer-actor.safetensors", "optimizer-critic.safetensors"}
    names = {path.name for path in tensors} - optimizers
    assert names == {"adapter_model.safetensors", "critic.safetensors"}
    for path in ("actor/adapter_model.safetensors", "critic.safetensors"):
        assert all("lora_" in n or n.startswith("score.") for n in tensors[step / path]), path
        assert not base & set(tensors[step / path])
    assert tensors[step / "critic.safetensors"]["score.weight"].abs().max() > 0

    def actor(stage: str, number: int) -> dict[str, torch.Tensor]:
        return load_file(
            checkpoint.path_of(out / stage, number) / "actor/adapter_model.safetensors"
        )

    for (one, n), (other, m), same in (
        (("pretrain", 0), ("pretrain", 1), False),
        (("pretrain", 1), ("warmup", 0), True),
        (("warmup", 2), ("rft", 1), False),
        (("rft", 1), ("value", 1), True),
        (("value", 1), ("agentic", 2), False),
    ):
        first, second = actor(one, n), actor(other, m)
        assert all(torch.equal(first[name], second[name]) for name in first) == same, (one, other)


def spoken_by_other_tools(folder: Path, policy: Path) -> None:
    """What a run leaves is what peft and transformers read, and the policy `transformers` plays."""
    kind = kind_of(folder)
    actor, _ = kind.models(0, CPU)
    kind.load(actor, policy)
    made = make_policy(PolicySpec("transformers", str(policy)))
    try:
        assert made.act(tiny_llm.Tools(64).first(), tiny_llm.Tools.schemas)
        ids = torch.tensor([[5, 6, 7, 8]])
        with torch.no_grad():
            ours = actor.lm_head(actor.model(input_ids=ids).last_hidden_state)
            theirs = made._batcher.engine.model.to(CPU)(ids).logits  # type: ignore[attr-defined]
        assert (ours - theirs).abs().max() < 1e-5
        plain = load(folder, "float32", CPU)
        assert not isinstance(plain, Broken)
        assert (plain.model(ids).logits - theirs).abs().max() > 1e-5
    finally:
        local.forget_models()


class Killed(BaseException):
    """As a kill: nothing of ours catches it."""


@pytest.mark.slow(20)
@pytest.mark.parametrize("lora", ["[model.lora]\nrank = 4", ""], ids=["adapters", "all weights"])
def test_a_run_of_a_pretrained_model_that_was_killed_goes_on_with_the_same_curve(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: str
) -> None:
    if lora:
        pytest.importorskip("peft")
    path = tmp_path / "run.toml"
    path.write_text(toml(folder, ["warmup"], lora))
    config = configs.read(path)

    def run_of(name: str) -> Run:
        world = tiny_llm.World()
        return Run(config, tmp_path / name, Alone(), lambda _: world, lambda _: None)

    run_stage(run_of("whole"), "warmup")
    real = runner.STEPS["warmup"]

    def dies(stage: Any, step: int) -> Any:
        if step == 1:
            raise Killed
        return real(stage, step)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setitem(runner.STEPS, "warmup", dies)
        run_stage(run_of("killed"), "warmup")
    assert checkpoint.steps_in(tmp_path / "killed" / "warmup") == [0, 1]
    run_stage(run_of("killed"), "warmup")
    assert curve(tmp_path / "killed" / "warmup") == curve(tmp_path / "whole" / "warmup")
    ends = [checkpoint.path_of(tmp_path / name / "warmup", 2) for name in ("whole", "killed")]
    files = sorted(p.relative_to(ends[0]) for p in ends[0].rglob("*.safetensors"))
    assert len(files) == 4
    for file in files:
        assert (ends[0] / file).read_bytes() == (ends[1] / file).read_bytes()


@pytest.mark.parametrize(("dtype", "gap"), [("float32", 1e-3), ("bfloat16", 0.3)])
def test_what_is_learnt_are_the_ids_that_the_engine_saw_and_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, gap: float
) -> None:
    kind = kind_of(folder, dtype)
    actor, critic = kind.models(0, CPU)
    asked: list[tuple[list[int], Sampled]] = []
    real = ChatSampler.generate

    def generate(self: ChatSampler, requests: Any) -> list[Sampled]:
        found = real(self, requests)
        asked.extend((list(r.ids), one) for r, one in zip(requests, found, strict=True))
        return found

    monkeypatch.setattr(ChatSampler, "generate", generate)
    played = roll_out(plans(), tiny_llm.World(), kind.speaker(actor, 1.0), Play(turns=3))
    samples = [sample for one in played for sample in one.episode.samples]
    words = kind.speech.tokenizer
    for sample in samples:
        places = [n for n in sample.actions if n - 1 not in sample.actions]
        seen = [tuple(sample.ids[:place]) for place in places]
        given = {tuple(ids): found for ids, found in asked}
        assert all(one in given for one in seen)
        for before in seen:
            said = given[before]
            assert sample.ids[len(before) : len(before) + len(said.ids)] == said.ids
            assert words.decode(before).endswith("<|begin|>assistant\n")
        assert sum(len(given[one].ids) for one in seen) == len(sample.actions)
        assert not sample.allowed and len(sample.logprobs) == len(sample.actions)
    texts = [words.decode(found.ids) for _, found in asked if found.ended]
    assert sum(text.removesuffix("<|end|>") in tiny_llm.SAYS for text in texts) > len(texts) / 2
    ready = prepare([p.episode for p in played], actor, critic, Estimates(), Alone())
    assert ready.figures["engine_gap"] < gap and ready.figures["mismatched"] == 0
    assert all(not step.values.any() for step in ready.steps)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_actor_critic_and_behaviour_learn_apart_on_one_body(folder: Path, dtype: str) -> None:
    kind = kind_of(folder, dtype)
    actor, critic = kind.models(0, CPU)
    behaviour = kind.copy(actor)
    body = {n: p.clone() for n, p in actor.shared.model.named_parameters() if "lora_" not in n}
    played = roll_out(plans(), tiny_llm.World(), kind.speaker(actor, 1.0), Play(turns=2))
    ready = prepare([p.episode for p in played], actor, critic, Estimates(), Alone())
    rules, chance = Rules(epochs=1, minibatches=1), random.Random(0)
    before = actor.state_dict()
    before = {n: t.clone() for n, t in before.items()}
    optimizer = torch.optim.AdamW(critic.parameters(), lr=1e-2)
    for model in (actor, critic):
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for _ in range(2):  # the body's part of the critic learns once its score is not 0
        update_critic(Learning(critic, optimizer, rules, Alone(), chance), ready.steps)
    assert all(torch.equal(t, before[n]) for n, t in actor.state_dict().items())
    assert any(t.abs().max() > 0 for n, t in critic.state_dict().items() if "lora_B" in n)
    kept = {n: t.clone() for n, t in critic.state_dict().items()}
    optimizer = torch.optim.AdamW(actor.parameters(), lr=1e-2)
    update_actor(Learning(actor, optimizer, rules, Alone(), chance), ready.steps)
    assert all(torch.equal(t, kept[n]) for n, t in critic.state_dict().items())
    assert all(torch.equal(t, before[n]) for n, t in behaviour.state_dict().items())
    assert not all(torch.equal(t, before[n]) for n, t in actor.state_dict().items())
    after = dict(actor.shared.model.named_parameters())
    assert all(torch.equal(p, after[n]) for n, p in body.items())
    begun = kind.new_critic(actor)
    critic.load_state_dict(begun)
    assert all(
        torch.equal(t, actor.state_dict().get(n, torch.zeros_like(t))) for n, t in begun.items()
    )


def test_weights_whose_head_is_their_embeddings_are_kept_and_read(tmp_path: Path) -> None:
    kind = kind_of(tiny_llm.build(tmp_path / "tied", tied=True), lora=None)
    actor, critic = kind.models(0, CPU)
    with torch.no_grad():
        actor.lm_head.weight.add_(1.0)
    wanted = actor.model.embed_tokens.weight.clone()
    kind.save(actor, {}, tmp_path / "kept")
    with torch.no_grad():
        actor.lm_head.weight.zero_()
    kind.load(actor, tmp_path / "kept")
    assert torch.equal(actor.lm_head.weight, wanted)
    assert torch.equal(actor.model.embed_tokens.weight, wanted)
    assert actor.model.embed_tokens.weight is actor.lm_head.weight
    copy = kind.copy(actor)
    assert torch.equal(copy.lm_head.weight, wanted) and copy.lm_head is not actor.lm_head
    assert set(kind.new_critic(actor)) == set(critic.state_dict())


def test_the_searchs_conversations_are_read_through_the_template(folder: Path) -> None:
    kind = kind_of(folder, lora=None)
    voice = kind.speech
    found = demonstrations(
        plans(2), ToyWorld(), voice, Play(), lambda plan: SearchPolicy(judgements=3)
    )
    assert len(found) == 2
    for sample in found:
        said = voice.tokenizer.decode([sample.ids[n] for n in sample.actions])
        assert said.count("<tool_call>") == said.count("</tool_call>") > 2
        assert "<|begin|>" not in said and said.endswith("<|end|>")
        assert not sample.spoken[0] and "Budget: 3 judgements" in voice.tokenizer.decode(sample.ids)
    short = replace(voice, window=100)
    assert demonstrations(plans(1), ToyWorld(), short, Play(), lambda plan: SearchPolicy()) == []


def test_a_message_of_another_policy_begins_where_the_model_would(folder: Path) -> None:
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(folder)
    message = {"role": "assistant", "content": "Well."}
    assert words.decode(Chat(words, 1000).saying(message)) == "\nWell.<|end|>".removeprefix("\n")
    words.chat_template = tiny_llm.TEMPLATE.replace("assistant\n{%", "model\n{%")
    assert Chat(words, 1000).saying(message) is None


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def without_tensor(folder: Path) -> None:
    from safetensors.torch import save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def without_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def larger_tokenizer(folder: Path) -> None:
    words = tiny_llm.tokenizer()
    words.add_tokens(["<one>", "<more>"])
    words.save_pretrained(folder)


def other_end(folder: Path) -> None:
    words = tiny_llm.tokenizer()
    words.eos_token = tiny_llm.BEGIN
    words.save_pretrained(folder)


def incomplete(folder: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (truncated, r"broken file model\.safetensors: .*copy it anew"),
        (without_tensor, r"lacks 1 tensors, such as model\.norm\.weight"),
        (without_template, "no chat template.*tuned to chat"),
        (larger_tokenizer, r"not the one of its model: it has an id \d+, and the model \d+"),
        (other_end, r"not the one of its model: it ends messages by id 1, the model by \[0\]"),
        (incomplete, r"has no model-00002-of-00002\.safetensors; copy it as a whole"),
        (pickled, r"holds no \.safetensors.*convert it"),
        (lambda folder: (folder / "tokenizer.json").unlink(), r"has no tokenizer\.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer in .* cannot be read"),
        (lambda folder: shutil.rmtree(folder), "is no folder.*nothing is fetched"),
    ],
    ids=[
        "truncated", "a tensor less", "no template", "a larger tokenizer", "another end", "a file less", "pickles",
        "no tokenizer", "half a tokenizer", "no folder",
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_checkpoint_is_said(
    folder: Path, tmp_path: Path, harm: Callable[[Path], None], said: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    harm(copy)
    with pytest.raises(checkpoint.Unusable, match=said):
        kind_of(copy, lora=None)


def test_targets_that_no_layer_has_are_refused(folder: Path) -> None:
    kind = kind_of(folder, lora=Lora(targets=("nowhere",)))
    with pytest.raises(checkpoint.Unusable, match=r"nowhere.*\[model\.lora\] targets"):
        kind.models(0, CPU)


def test_adapters_of_another_checkpoint_tokenizer_or_rank_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    kind = kind_of(folder)
    actor, _ = kind.models(0, CPU)
    kept = tmp_path / "kept"
    kind.save(actor, {}, kept)
    kind.load(actor, kept)

    def refused(base: Path, said: str, **lora: Any) -> None:
        other = kind_of(base, lora=Lora(**{"rank": 4, **lora}))
        with pytest.raises(checkpoint.Unusable, match=said):
            other.load(other.models(0, CPU)[0], kept)

    refused(folder, "of another adapter", rank=8)
    refused(folder, "of another adapter", targets=("q_proj",))
    refused(tiny_llm.build(tmp_path / "wider", hidden=128), "trained with another weights")
    spoken = tmp_path / "spoken"
    shutil.copytree(folder, spoken)
    template = (spoken / "chat_template.jinja").read_text()
    (spoken / "chat_template.jinja").write_text(template + "{# other #}")
    refused(spoken, "trained with another tokenizer.*that the run was begun with")
    cut = kept / "adapter_model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-10])
    refused(folder, "weights in .* cannot be read")
    (kept / "training.json").unlink()
    refused(folder, "is not whole")


@pytest.mark.parametrize("gpus", [1, 8])
def test_the_examples_for_pretrained_models_are_read(gpus: int) -> None:
    found = configs.read(ROOT / "examples" / f"train_llm_{gpus}gpu.toml")
    assert found.model.checkpoint and found.model.lora and found.model.dtype == "bfloat16"
    assert found.stages[-1] == "eval" and {"rft", "value", "agentic"} < set(found.stages)
    for name in found.stages[:-1]:
        assert found.stage(name).episodes % (gpus * found.stage(name).attempts) == 0
    assert found.alarms.gap > configs.Config().alarms.gap  # bfloat16


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[model.lora]\nrank = 4", "lora needs a checkpoint"),
        ("[model]\ncheckpoint = 'a'\nhidden = 64\nlayers = 9", "leave out hidden, layers"),
        ("[model]\ncheckpoint = 'a'", 'give [model.lora], or dtype = "float32"'),
        ("[model]\ncheckpoint = 'a'\nmessage = 4096", "below window (4096)"),
        ("[model]\ncheckpoint = 'a'\n[model.lora]\nrank = 0", "a rank of at least 1"),
        ("[model]\ncheckpoint = 'a'\n[model.lora]\nrang = 1", "there is no 'rang'"),
        ("[model]\ncheckpoint = 'a'\n[model.lora]", '"chance", which speaks'),
    ],
    ids=["alone", "size", "whole", "message", "rank", "unknown", "chance"],
)
def test_what_is_wrong_with_the_settings_of_a_pretrained_model_is_said(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(configs.BadConfig) as error:
        configs.read(path)
    assert said in str(error.value)


def test_adapters_without_peft_are_an_error_that_says_what_to_install(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(toml(folder, ["warmup"]))
    real = stages_command.find_spec
    monkeypatch.setattr(
        stages_command, "find_spec", lambda name: None if name == "peft" else real(name)
    )
    assert command.main(["warmup", str(path), "--out", str(tmp_path / "out")]) == command.USAGE
    assert 'peft: not installed: pip install "cuda_agent[train]"' in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_sampler_that_is_given_a_window_keeps_to_it(folder: Path) -> None:
    found = load(folder, "float32", CPU)
    assert not isinstance(found, Broken)
    voice = ChatVoice(found.tokenizer, found.ends, 512, 64)
    (one,) = roll_out(plans(1), tiny_llm.World(), ChatSampler(found.model, voice), Play())
    assert one.episode.end == "context" and not one.episode.samples
