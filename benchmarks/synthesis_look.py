"""Facts of one row of a set, found in a process of its own: what its results hold and what they depend on.

In float64 where the program allows it, so that a weight that something cancels moves the results by rounding of 1e-16,
and one that counts little still moves them by more. Two runs are compared so too: on a GPU sums of half precision in
another order differ by a step of rounding, which draws nothing.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import confined
from benchmarks.synthesis_graph import digest, fields, recorded, tensors_in, used_names

MOVED = 1e-9
"""Results that move by less, relative to the largest of them, do not depend on what was changed."""
SAME_NUMBER = 0.9
LIKE = 1e-4
"""Results for other inputs that differ by less cannot be told from each other."""
LOOKED_AT = 1 << 22
TWICE, TWICE_ROUNDED = 1e-5, 1e-2
"""Two runs differ by less than this through the order of sums: in float64 the largest difference, else by RMS."""
COTANGENT_SEED = 11


def look(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Facts of a row: its ``code`` and ``training``, the ``device``, whether ``digests`` of its graph are all that is
    wanted, and whether it is asked for the ``last`` time: then it does without float64 where that finds no memory.

    Raises whatever its code raises, and where it finds no memory.
    """
    program: Any = types.ModuleType("program")
    text = folder / "program.py"
    text.write_text(row["code"], encoding="utf-8")
    exec(compile(row["code"], str(text), "exec"), program.__dict__)
    facts = _as_it_is(program, row)
    if row["digests"]:
        return facts
    own = getattr(program, "DTYPE", None)
    _give_back(row["device"])
    try:
        return {**facts, **_further(program, row, _longer)}
    except Exception as error:
        if not (row["last"] and _is_memory(error)):
            raise
    program.DTYPE = own
    _give_back(row["device"])
    return {**facts, **_further(program, row, _made)}


def _as_it_is(program: Any, row: dict[str, Any]) -> dict[str, Any]:
    """Of a run in the row's own dtype: its graph, what results hold, whether its gradients are finite."""
    model, inputs = _made(program, row)
    found, results = recorded(model, inputs)
    facts: dict[str, Any] = {
        "exact": digest(found, results, numbers=True),
        "shape": digest(found, results, numbers=False),
    }
    if row["digests"]:
        return facts
    facts |= {"used": dict(used_names(found, results)), **_held(results)}
    del found, results  # all that the run has made
    _give_back(row["device"])
    slopes = _trained(model, inputs)[1] if row["training"] else []
    learned = _held(slopes)
    return {**facts, "slopes_finite": learned["finite"], "slopes_constant": learned["constant"]}


def _further(
    program: Any,
    row: dict[str, Any],
    make: Callable[[Any, dict[str, Any]], tuple[nn.Module, list[Any]]],
) -> dict[str, Any]:
    """Whether the row draws, and what its results depend on."""
    model, inputs = make(program, row)
    run = partial(_all_of, model, inputs) if row["training"] else partial(_run, model, inputs)
    draws = _draws(run, row["device"])
    _give_back(row["device"])
    return {"draws": draws, **_dependence(program, model, inputs, row["device"])}


def _give_back(device: str) -> None:
    """Give memory that nothing needs any more back to the device: other rows are looked at beside this one."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def _is_memory(error: Exception) -> bool:
    return confined.lacks_memory({"failed": f"{type(error).__name__}: {error}"})


def _made(program: Any, row: dict[str, Any]) -> tuple[nn.Module, list[Any]]:
    torch.manual_seed(7)
    with torch.device(row["device"]):
        model = program.Model(*program.get_init_inputs()).eval()
    return model, _inputs(program, row["device"], 1)


def _inputs(program: Any, device: str, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    with torch.device(device):
        return list(program.get_inputs())


def _longer(program: Any, row: dict[str, Any]) -> tuple[nn.Module, list[Any]]:
    """Model and inputs in float64, or as they are where they do not run so. Raises where there is no memory for it."""
    own = getattr(program, "DTYPE", None)
    try:
        return _doubled(program, row)
    except Exception as error:  # a kernel or a program that knows no float64
        if _is_memory(error):
            raise
    program.DTYPE = own
    _give_back(row["device"])
    return _made(program, row)


def _doubled(program: Any, row: dict[str, Any]) -> tuple[nn.Module, list[Any]]:
    program.DTYPE = torch.float64
    model, inputs = _made(program, row)
    model, inputs = model.double(), _double(inputs)
    (_trained if row["training"] else _run)(model, inputs)
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


def _draws(run: Callable[[], list[Tensor]], device: str) -> bool:
    """Whether two runs give different results; where runs move torch's generators, after these were moved."""
    first = run()
    before = _generators(device)
    again = run()
    if not all(map(torch.equal, before, _generators(device))):
        # Attention takes numbers for a share of 0 that it drops, on some devices; that alone changes nothing.
        torch.manual_seed(99)
        again = run()
    if _in_float64(first):
        return _apart(first, again) > TWICE
    return by_rms(first, again) > TWICE_ROUNDED


def _in_float64(results: Sequence[Tensor]) -> bool:
    kinds = {result.dtype for result in results if result.is_floating_point()}
    return kinds == {torch.float64}


def _generators(device: str) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return states + ([torch.cuda.get_rng_state()] if device == "cuda" else [])


def _run(model: nn.Module, inputs: Sequence[Any]) -> list[Tensor]:
    with torch.no_grad():
        return tensors_in(fields(model(*inputs)))


def _all_of(model: nn.Module, inputs: Sequence[Any]) -> list[Tensor]:
    """Results and gradients."""
    results, slopes = _trained(model, inputs)
    return [*results, *slopes]


def _trained(model: nn.Module, inputs: Sequence[Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Results, and gradients of inputs and weights against numbers that do not change. Raises ValueError where no
    result has a gradient."""
    given = [_learned(value) for value in inputs]
    wanted = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    wanted += [weight for weight in model.parameters() if weight.requires_grad]
    with torch.enable_grad():
        results = tensors_in(fields(model(*given)))
    lasting = [result for result in results if result.requires_grad]
    if not lasting:
        raise ValueError("no result has a gradient")
    against = [_cotangent(result) for result in lasting]
    slopes = torch.autograd.grad(lasting, wanted, against, allow_unused=True)
    found = [
        slope.to_dense() if slope.is_sparse else slope for slope in slopes if slope is not None
    ]
    return [result.detach() for result in results], found


def _learned(value: Any) -> Any:
    """An input of which a gradient is to be had."""
    is_floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.detach().requires_grad_() if is_floating else value


def _cotangent(result: Tensor) -> Tensor:
    generator = torch.Generator(result.device).manual_seed(COTANGENT_SEED)
    made: Tensor = torch.randn(
        result.shape, dtype=result.dtype, device=result.device, generator=generator
    )
    return made


def by_rms(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """RMS of the difference over that of the other's values, of the result where it is largest; of results that are no
    floating numbers the share that differs. Infinite where only one has a NaN or an infinity."""
    most = 0.0
    for a, b in zip(one, other, strict=True):
        if not b.numel():
            continue
        if not b.is_floating_point():
            most = max(most, float((a != b).double().mean()))
            continue
        x, y = a.double(), b.double()
        same = (x == y) | (x.isnan() & y.isnan())
        distance = float((x - y).masked_fill_(same, 0.0).square_().mean().sqrt())
        size = float(y.masked_fill(~y.isfinite(), 0.0).square_().mean().sqrt())
        found = distance / max(size, 1e-30)
        most = max(most, found if found == found else float("inf"))
    return most


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
        "float64": _in_float64(first),
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
