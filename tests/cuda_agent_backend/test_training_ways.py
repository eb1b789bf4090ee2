"""Training with our kernels gives what eager training gives, in all the ways in which torch can train."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deployed_kit as deployed
import pytest
import ranks_process
import splice_kit as kit
import torch
from ranks_process import Net, batch
from torch import Tensor
from torch._inductor import config as inductor_config

from cuda_agent_backend.runtime import kernels

SIGMOID = "1 / (1 + std::exp(-a))"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kernels, "_open", {})
    with inductor_config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


def fill(folder: Path, options: Any) -> int:
    """Keep a kernel for each sigmoid of the network's forward graph; how many there are."""
    seen = kit.Capture()
    torch.compile(Net(), backend=kit.backend_for(options, seen))(batch(0, 0))
    torch._dynamo.reset()
    forms = [form for form in seen.forms if len(form.task.inputs) == 1]
    for form in forms:
        assert [node.name for node in form.task.nodes] == ["sigmoid"]
        kit.promote(kit.cache_of(options), form.task, kit.elementwise(form.task, SIGMOID), folder)
    return len(forms)


def loss_of(net: Any) -> Tensor:
    loss: Tensor = net(batch(0, 0)).square().mean()
    return loss


def gradients(net: torch.nn.Module) -> list[Tensor]:
    return [p.grad for p in net.parameters() if p.grad is not None]


def test_compiled_autograd_gives_eagers_gradients(tmp_path: Path) -> None:
    options = kit.options_in(tmp_path)
    kernels_there = fill(tmp_path, options)
    backend, ours, eager = kit.backend_for(options), Net(), Net()
    run = torch.compile(ours, backend=backend)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend=backend)):
        loss_of(run).backward()
    loss_of(eager).backward()
    reports = [report for hook in backend.passes for report in hook.reports]
    assert sum(report.count("hit") for report in reports) == kernels_there == 2
    assert len(reports) >= 2, "the backward pass was not compiled"
    torch.testing.assert_close(gradients(ours), gradients(eager))


OPTIMIZERS: dict[str, Any] = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_optimizer_steps_as_eager_does(name: str, tmp_path: Path) -> None:
    options = kit.options_in(tmp_path)
    fill(tmp_path, options)
    backend, ours, eager = kit.backend_for(options), Net(), Net()
    optimizers = [OPTIMIZERS[name](net.parameters()) for net in (ours, eager)]
    run = torch.compile(ours, backend=backend)
    steps = torch.compile(optimizers[0].step, backend=backend), optimizers[1].step
    for _ in range(3):
        for net, step, optimizer in zip((run, eager), steps, optimizers, strict=True):
            loss_of(net).backward()
            step()
            optimizer.zero_grad()
    assert sum(r.count("hit") for hook in backend.passes for r in hook.reports) >= 2
    torch.testing.assert_close(list(ours.parameters()), list(eager.parameters()))


@pytest.mark.slow
def test_two_ranks_train_as_eagerly_whether_replicated_or_sharded(tmp_path: Path) -> None:
    assert fill(tmp_path, ranks_process.options(tmp_path)) == 2
    found = deployed.run_in_process("ranks", str(tmp_path), module="ranks_process")
    for rank in found:
        assert rank.pop("recorded")[0] >= len(ranks_process.WAYS), "no graph was recorded"
        for way, (eager, ours, hits) in rank.items():
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(eager), msg=way)
            assert hits >= 2, way
