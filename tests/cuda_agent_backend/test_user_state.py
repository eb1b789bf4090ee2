"""What a user can see of tensors and of the process is the same after a graph was recorded, searched and compiled."""

import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import splice_kit as kit
import torch
from torch import Tensor
from torch._inductor import config as inductor_config

from cuda_agent_backend.acceptance.whole_graph import WholeGraph
from cuda_agent_backend.options import Options
from cuda_agent_backend.runtime import kernels
from cuda_agent_backend.runtime.tensor_files import load, record
from cuda_agent_backend.search.client import SearchClient, SearchProcess
from sandbox.task import flags


def seen_of(tensor: Tensor) -> dict[str, Any]:
    """All that can be observed of a tensor and its memory."""
    storage = tensor.untyped_storage()
    return {
        "copy on write": torch._C._is_cow_tensor(tensor),
        "version": None if tensor.is_inference() else tensor._version,
        "resizable": storage.resizable(),
        "bytes": storage.nbytes(),
        "shared": tensor.is_shared(),
        "pinned": torch.cuda.is_available() and tensor.is_pinned(),
        "owners": torch._C._storage_Use_Count(storage._cdata),
        "requires_grad": tensor.requires_grad,
        "grad": id(tensor.grad) if tensor.is_leaf else None,
        "grad_fn": tensor.grad_fn,
        "hooks": tensor._backward_hooks,
        "base": tensor._base,
        "layout": (tensor.shape, tensor.stride(), tensor.storage_offset()),
        "bits": (tensor.is_conj(), tensor.is_neg(), tensor.is_inference()),
        "type": (type(tensor), tensor.dtype, tensor.device),
        "attributes": {k: v for k, v in vars(tensor).items() if not k.startswith("_dynamo")},
    }


def _with_grad() -> Tensor:
    made = torch.nn.Parameter(torch.randn(6, 8))
    made.grad = torch.ones(6, 8)
    made.note = "mine"  # type: ignore[attr-defined]
    return made


def _inference() -> Tensor:
    with torch.inference_mode():
        return torch.randn(6, 8)


TENSORS: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: torch.randn(6, 8),
    "a parameter with a gradient": _with_grad,
    "made by an operator": lambda: torch.randn(6, 8, requires_grad=True) * 2,
    "a view": lambda: torch.randn(9, 16)[1:7, ::2],
    "expanded": lambda: torch.randn(6, 1).expand(6, 8),
    "negated lazily": lambda: torch.randn(6, 8, dtype=torch.cfloat).conj().imag,
    "shared among processes": lambda: torch.randn(6, 8).share_memory_(),
    "copied on write": lambda: torch._lazy_clone(torch.randn(6, 8)),
    "made in inference mode": _inference,
    "of eight bits": lambda: torch.randn(6, 8).to(torch.float8_e4m3fn),
    "of no elements": lambda: torch.randn(0, 8),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_recording_a_tensor_changes_nothing_that_can_be_seen_of_it(
    kind: str, tmp_path: Path
) -> None:
    tensor = TENSORS[kind]()
    before = seen_of(tensor)
    assert record(tmp_path / "real", [tensor])
    assert seen_of(tensor) == before
    (kept,) = load(tmp_path / "real")
    torch.testing.assert_close(kept.float(), tensor.detach().float(), rtol=0, atol=0)


@pytest.mark.gpu
def test_recording_a_pinned_or_a_device_tensor_changes_nothing(tmp_path: Path) -> None:
    tensors = [torch.randn(6, 8).pin_memory(), torch.randn(6, 8, device="cuda")]
    before = [seen_of(tensor) for tensor in tensors], torch.cuda.get_rng_state()
    assert record(tmp_path / "real", tensors)
    assert [seen_of(tensor) for tensor in tensors] == before[0]
    assert torch.equal(torch.cuda.get_rng_state(), before[1])


def test_a_tensor_whose_memory_was_taken_away_is_not_recorded(tmp_path: Path) -> None:
    sharded = torch.randn(6, 8)
    sharded.untyped_storage().resize_(0)
    assert record(tmp_path / "real", [sharded]) == ""
    sharded.untyped_storage().resize_(6 * 8 * 4)
    assert record(tmp_path / "real", [sharded])


def seen_of_the_process() -> dict[str, Any]:
    """Settings and states of a process that a program may rely on."""
    devices = ("cpu", "cuda")
    return {
        "flags": flags.current(),
        "random numbers of torch": torch.get_rng_state().tolist(),
        "random numbers of python": random.getstate(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices],
        "precision": torch.get_float32_matmul_precision(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ),
        "warnings": list(warnings.filters),
        "environment": dict(os.environ),
        "signals": {
            n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
        },
        "path": list(sys.path),
        "hooks": (sys.excepthook, sys.displayhook, sys.stdout, sys.stderr),
        "folder": str(Path.cwd()),
        "inductor": {k: repr(v) for k, v in inductor_config.get_config_copy().items()},
    }


def everything(inputs: Sequence[Tensor]) -> dict[str, Any]:
    """What is seen of the tensors and of the process, under names that say which."""
    seen = {f"{name} of {i}": v for i, x in enumerate(inputs) for name, v in seen_of(x).items()}
    return seen | seen_of_the_process()


def changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What is not what it was: before and after, by name."""
    return {name: (old, after[name]) for name, old in before.items() if after[name] != old}


class Measures:
    """A searcher that finds nothing and says that a graph is to be used as it is."""

    def __init__(self) -> None:
        self.recorded: list[int] = []

    def search(self, *_: Any) -> dict[str, Any]:
        return {}

    def enqueue(self, *_: Any) -> None: ...

    def accept(self, whole: WholeGraph, budget_s: float) -> dict[str, Any] | str:
        self.recorded.append(len(load(Path(whole.inputs))) if whole.inputs else 0)
        return {"use": [key.digest for key in whole.keys], "reason": ""}


def model(x: Tensor, w: Tensor) -> Tensor:
    return torch.exp(x @ w)


@pytest.fixture
def with_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Options]:
    """Options of a cache with a kernel for the model, whose whole graph has to be measured."""
    monkeypatch.setattr(kernels, "_open", {})
    options = kit.options_in(tmp_path, search="search", acceptance="measure")
    seen = kit.Capture()
    with inductor_config.patch(force_disable_caches=True), torch.no_grad():
        torch.compile(model, backend=kit.backend_for(options, seen))(*given())
        (form,) = [form for form in seen.forms if len(form.task.inputs) == 1]
        body = kit.elementwise(form.task, "std::exp(a)")
        kit.promote(kit.cache_of(options), form.task, body, tmp_path)
        torch._dynamo.reset()
        yield options
        torch._dynamo.reset()


def given() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(6, 8), torch.nn.Parameter(torch.randn(8, 4))]


def test_a_first_call_that_is_measured_leaves_tensors_and_process_as_they_were(
    with_kernel: Options,
) -> None:
    inputs, searcher = given(), Measures()
    backend = kit.backend_for(with_kernel, searcher=searcher)
    before = everything(inputs)
    result = torch.compile(model, backend=backend)(*inputs)
    assert not changed(before, everything(inputs))
    assert searcher.recorded == [2] and backend.passes[0].reports[0].count("hit") == 1
    torch.testing.assert_close(result, model(*inputs))
    inputs[0].resize_(60, 8)


def test_a_search_in_its_process_leaves_tensors_and_process_as_they_were(
    with_kernel: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    process = SearchProcess("fake_service")

    def other(x: Tensor, w: Tensor) -> Tensor:
        return torch.sin(x @ w)

    try:
        inputs = given()
        backend = kit.backend_for(with_kernel, searcher=SearchClient(with_kernel, process))
        before = everything(inputs)
        result = torch.compile(other, backend=backend)(*inputs)
        assert not changed(before, everything(inputs))
        torch.testing.assert_close(result, other(*inputs))
    finally:
        process.stop()
