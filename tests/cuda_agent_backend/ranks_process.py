"""Two ranks train a small network, eagerly and compiled with our kernels, in all of torch's data parallel ways."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import splice_kit as kit
import torch
import torch.distributed as dist
from torch import Tensor, nn

from cuda_agent_backend.acceptance.whole_graph import WholeGraph
from cuda_agent_backend.runtime.tensor_files import load

STEPS = 3


class Net(nn.Module):
    """Two layers, with a sigmoid behind each that has a kernel in its forward graph."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.second(torch.sigmoid(self.first(x))))


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * rank + step))


def replicated(net: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(net)


def sharded(net: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(net, mesh=init_device_mesh("cpu", (2,)))


def flat_sharded(net: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(net, use_orig_params=True, device_id=torch.device("cpu"))


WAYS = {"replicated": replicated, "sharded": sharded, "flat sharded": flat_sharded}


class Measures:
    """Takes every kernel, and counts the graphs whose real inputs it was given."""

    recorded = 0

    def search(self, *_: Any) -> dict[str, Any]:
        return {}

    def enqueue(self, *_: Any) -> None: ...

    def accept(self, whole: WholeGraph, budget_s: float) -> dict[str, Any] | str:
        Measures.recorded += bool(whole.inputs and load(Path(whole.inputs)))
        return {"use": [key.digest for key in whole.keys], "reason": ""}


def options(folder: Path) -> Any:
    return kit.options_in(folder, search="search", acceptance="measure")


def train(run: Callable[[Tensor], Tensor], net: nn.Module, rank: int) -> list[float]:
    """The losses of some steps."""
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.1), []
    for step in range(STEPS):
        loss = run(batch(rank, step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def rank_of(rank: int, folder: str) -> None:
    """What one rank does; of each way the losses without and with us, and how many kernels were used."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    found = {}
    for name, way in WAYS.items():
        torch._dynamo.reset()
        plain, ours = way(Net()), way(Net())
        backend = kit.backend_for(options(Path(folder)), searcher=Measures())
        losses = train(plain, plain, rank), train(torch.compile(ours, backend=backend), ours, rank)
        hits = sum(r.count("hit") for hook in backend.passes for r in hook.reports)
        found[name] = [*losses, hits]
    found["recorded"] = [Measures.recorded]
    Path(folder, f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def ranks(folder: str) -> Any:
    """Both ranks' findings."""
    import torch.multiprocessing as processes

    torch._inductor.config.force_disable_caches = True
    processes.spawn(rank_of, (folder,), nprocs=2)
    return [json.loads(Path(folder, f"rank{rank}.json").read_text()) for rank in range(2)]


if __name__ == "__main__":
    from ranks_process import ranks as ranks_here  # spawned processes know it by this name

    print(json.dumps(ranks_here(*sys.argv[2:])))
