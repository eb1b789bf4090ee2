"""The models of the whole-model benchmark: each builds without a network, runs, learns, and has its published size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.whole_models.reference import FIRST, exact
from benchmarks.whole_models.registry import SUBJECTS
from benchmarks.whole_models.subject import Subject, WithLoss, build, for_reference
from cuda_agent_backend.bench.sizes import LiveStorages
from cuda_agent_backend.tools.model_oracle import oracle

LARGE = SUBJECTS["cuda"]
LEAST = 16
PARAMETERS = {
    "bert_base": 109.5e6,
    "modernbert_base": 149.7e6,
    "gpt2_medium": 354.8e6,
    "llama_prefill": 1923e6,
    "llama_decode": 1923e6,
    "mixture": 1045e6,
    "t5_base": 222.9e6,
    "mamba2": 159e6,
    "whisper_encoder": 637e6,
    "vit_large": 304.3e6,
    "clip": 151.3e6,
    "convnext_base": 88.6e6,
    "resnet50": 25.6e6,
    "efficientnet": 5.3e6,
    "denoiser": 480e6,
    "recommender": 666e6,
    "graph": 0.44e6,
}
"""As published, where the model is; of our own, what they were meant to have."""
MOST_BYTES = 30_000_000_000
"""By one process in inference, bfloat16: two or three run by turns on a card of 80 GB."""


@pytest.fixture(params=[pytest.param(s, id=s.name) for s in LARGE.values()])
def subject(request: pytest.FixtureRequest) -> Subject:
    found = request.param
    assert isinstance(found, Subject)
    return found


def test_there_are_enough_models_and_each_has_a_known_size() -> None:
    assert len(LARGE) >= LEAST
    assert LARGE.keys() == PARAMETERS.keys()
    assert all(subject.kinds[0] == "inference" for subject in LARGE.values())


def test_a_toy_compiles_without_inductor_to_what_eager_computes(subject: Subject) -> None:
    made = build(subject, "cpu", torch.float32, toy=True)
    torch._dynamo.reset()
    graphs: list[object] = []

    def kept(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    with torch.no_grad():
        eager = made.model(*made.inputs)
        compiled = torch.compile(made.model, backend=kept)(*made.inputs)
        exact = oracle(for_reference(made.model), made.inputs)[0]
    assert graphs
    assert isinstance(eager, Tensor) and eager.shape == compiled.shape == exact.shape
    torch.testing.assert_close(compiled, eager)
    torch.testing.assert_close(eager.double(), exact, rtol=1e-3, atol=1e-3)
    assert eager.std() > 0


def test_a_toy_is_built_with_the_same_numbers_again(subject: Subject) -> None:
    one, other = (build(subject, "cpu", torch.float32, toy=True) for _ in range(2))
    for mine, theirs in zip(one.inputs, other.inputs, strict=True):
        assert torch.equal(mine, theirs)
    for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    with torch.no_grad():
        first = one.model(*one.inputs).clone()
        assert torch.equal(first, other.model(*other.inputs))
        assert torch.equal(first, one.model(*one.inputs)), "a second call differs from the first"


def test_every_parameter_of_a_toy_learns_and_nothing_is_drawn(subject: Subject) -> None:
    if "training" not in subject.kinds:
        pytest.skip("a model that only decodes")
    made = build(subject, "cpu", torch.float32, toy=True)
    step = WithLoss(made.model.train(), made.loss)
    losses = [step(made.target, *made.inputs) for _ in range(2)]
    assert losses[0].dim() == 0 and torch.isfinite(losses[0])
    assert torch.equal(*losses), "a dropout or another draw"
    losses[0].backward()
    used = [p.grad is not None and bool(p.grad.any()) for p in made.model.parameters()]
    assert sum(used) >= 0.85 * len(used), f"{len(used) - sum(used)} of {len(used)} do not learn"


def test_half_precision_leaves_rotary_frequencies_alone(subject: Subject) -> None:
    made = build(subject, "cpu", torch.bfloat16, toy=True)
    dtypes = {name: tensor.dtype for name, tensor in made.model.named_buffers()}
    for name, dtype in dtypes.items():
        assert (dtype == torch.float32) == name.endswith("inv_freq") or not dtype.is_floating_point
    with torch.no_grad():
        assert made.model(*made.inputs).dtype in (torch.bfloat16, torch.float32)


def test_the_real_size_has_its_parameters_and_runs_on_tensors_without_memory(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as when it is compiled: eager looks whether several texts are packed into a row, which needs their numbers
    monkeypatch.setattr("transformers.masking_utils.is_tracing", lambda tensor: True)
    with torch.no_grad():
        made = build(subject, "meta", torch.bfloat16)
        many = sum(parameter.numel() for parameter in made.model.parameters())
        with LiveStorages() as counted:
            for tensor in (*made.model.parameters(), *made.model.buffers(), *made.inputs):
                counted.count(tensor)
            out = made.model(*made.inputs)
    assert many == pytest.approx(PARAMETERS[subject.name], rel=0.03)
    assert out.numel() > 0
    assert counted.peak < MOST_BYTES


class Full(nn.Sequential):
    """Two layers, of which memory lasts for one in float64, at first."""

    tries = 0

    def double(self) -> Any:
        self.tries += 1
        self[0].double()
        if self.tries == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")
        return super().double()


def test_a_model_that_was_half_widened_when_memory_ran_out_is_held_against_its_first_sample() -> (
    None
):
    torch.manual_seed(0)
    model, inputs = Full(nn.Linear(3, 4), nn.Linear(4, 2)), torch.randn(5, 3)
    wanted = model(inputs).detach()
    work: Any = SimpleNamespace(model=model, inputs=(inputs,), samples=True, training=False)
    how, (found,) = exact(work)
    assert how == FIRST and found.dtype == torch.float64 and found.shape == (1, 2)
    torch.testing.assert_close(found, wanted[:1].double(), rtol=1e-5, atol=1e-6)
