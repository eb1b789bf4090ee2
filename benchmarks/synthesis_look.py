"""Facts of one row of a set, found in a process of its own: what its results hold and what they depend on.

In float64 where the program allows it, so that a weight that something cancels moves the results by rounding of 1e-16,
and one that counts little still moves them by more.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.synthesis_graph import digest, recorded, tensors_in, used_names

MOVED = 1e-9
"""Results that move by less, relative to the largest of them, do not depend on what was changed."""
SAME_NUMBER = 0.9
LIKE = 1e-4
"""Results for other inputs that differ by less cannot be told from each other."""
LOOKED_AT = 1 << 22
TWICE = 1e-5
"""Two runs differ by less than this through the order of sums."""


def look(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Facts of a row: ``code`` and ``device``. Raises whatever its code raises."""
    program = types.ModuleType("program")
    text = folder / "program.py"
    text.write_text(row["code"], encoding="utf-8")
    exec(compile(row["code"], str(text), "exec"), program.__dict__)
    device = row["device"]
    model, inputs = _made(program, device, 1)
    found, results = recorded(model, inputs)
    facts = {
        "used": dict(used_names(found, results)),
        "exact": digest(found, results, numbers=True),
        "shape": digest(found, results, numbers=False),
        "draws": _draws(model, inputs, device),
        **_held(results),
    }
    del found, results  # all that the run has made
    model, inputs = _longer(program, model, inputs, device)
    return {**facts, **_dependence(program, model, inputs, device)}


def _made(program: Any, device: str, seed: int) -> tuple[nn.Module, list[Any]]:
    torch.manual_seed(7)
    with torch.device(device):
        model = program.Model(*program.get_init_inputs()).eval()
    return model, _inputs(program, device, seed)


def _inputs(program: Any, device: str, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    with torch.device(device):
        return list(program.get_inputs())


def _longer(
    program: Any, model: nn.Module, inputs: list[Any], device: str
) -> tuple[nn.Module, list[Any]]:
    """The same in float64, or as it is where it does not run so."""
    before = getattr(program, "DTYPE", None)
    try:
        program.DTYPE = torch.float64
        made, given = _made(program, device, 1)
        made, given = made.double(), _double(given)
        with torch.no_grad():
            made(*given)
        return made, given
    except Exception:  # a kernel or a program that knows no float64
        program.DTYPE = before
        return model, inputs


def _double(values: Sequence[Any]) -> list[Any]:
    return [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in values]


def _as(value: Any, like: Any) -> Any:
    return value.to(like.dtype) if isinstance(value, Tensor) else value


def _held(results: Sequence[Tensor]) -> dict[str, Any]:
    """Of results with more than one number: whether all are finite, and the largest share of a single number."""
    finite, share, constant = True, 0.0, bool(results)
    for result in results:
        flat = result.detach().flatten()
        if result.is_floating_point():
            finite = finite and bool(flat.isfinite().all())
        if flat.numel() < 2:
            constant = False
            continue
        some = flat[
            torch.arange(0, flat.numel(), max(1, flat.numel() // LOOKED_AT), device=flat.device)
        ]
        ordered = some.float().sort().values
        ends = torch.cat([ordered[1:] != ordered[:-1], ordered.new_ones(1, dtype=torch.bool)])
        places = ends.nonzero().flatten()
        runs = torch.diff(places, prepend=places.new_full((1,), -1))
        share = max(share, float(runs.max()) / some.numel())
        constant = constant and runs.numel() == 1
    return {"finite": finite, "share": share, "constant": constant}


def _draws(model: nn.Module, inputs: Sequence[Any], device: str) -> bool:
    """Whether a run moves torch's generators, or gives other results when they were moved."""
    first = _run(model, inputs)
    before = _generators(device)
    again = _run(model, inputs)
    if not all(map(torch.equal, before, _generators(device))):
        # Attention takes numbers for a share of 0 that it drops, on some devices; that alone changes nothing.
        torch.manual_seed(99)
        return not _equal(first, _run(model, inputs))
    return _apart(first, again) > TWICE


def _equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return _apart(one, other) <= TWICE


def _generators(device: str) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return states + ([torch.cuda.get_rng_state()] if device == "cuda" else [])


def _run(model: nn.Module, inputs: Sequence[Any]) -> list[Tensor]:
    with torch.no_grad():
        result = model(*inputs)
    return tensors_in(dict(result) if hasattr(result, "keys") else result)


def _apart(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """The largest difference of two runs, over the largest number; 1 where they differ in kind."""
    most = 0.0
    for a, b in zip(one, other, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return 1.0
        if not a.numel():
            continue
        x, y = a.double(), b.double()
        size = float(torch.maximum(x.abs().amax(), y.abs().amax()))
        most = max(most, float((x - y).abs().amax()) / size if size else 0.0)
    return most


def _dependence(program: Any, model: nn.Module, inputs: list[Any], device: str) -> dict[str, Any]:
    """How far results move with other inputs, with each input and with each weight."""
    first = _run(model, inputs)

    other = [_as(x, y) for x, y in zip(_inputs(program, device, 2), inputs, strict=True)]
    alone = []
    for place, value in enumerate(inputs):
        if isinstance(value, Tensor):
            mixed = [*inputs[:place], other[place], *inputs[place + 1 :]]
            alone.append(_apart(first, _run(model, mixed)))
    weights = {}
    for name, weight in [*model.named_parameters(), *model.named_buffers()]:
        if weight.is_floating_point() and weight.numel():
            weights[name] = _with_weight(model, inputs, weight, first)
    return {
        "other_inputs": _apart(first, _run(model, other)),
        "by_input": alone,
        "by_weight": weights,
        "float64": str(first[0].dtype) == "torch.float64" if first else False,
    }


def _with_weight(
    model: nn.Module, inputs: list[Any], weight: Tensor, first: Sequence[Tensor]
) -> float:
    kept = weight.detach().clone()
    with torch.no_grad():
        # Not the same factor everywhere, which a normalization would cancel, and no other sign.
        steps = torch.linspace(0.5, 1.5, kept.numel(), device=kept.device, dtype=torch.float64)
        mixed = steps[torch.randperm(kept.numel(), device=kept.device)].reshape(kept.shape)
        weight.copy_(torch.where(kept == 0, 0.1 * mixed, kept * mixed))
    found = _apart(first, _run(model, inputs))
    with torch.no_grad():
        weight.copy_(kept)
    return found
