"""Loops that tracing wrote out: recognised step by step, one kernel for all steps, right as an emulator runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
import torch
from sketch_kit import Sample, on_cuda, randn
from torch import Tensor
from torch.nn import functional as F

from cuda_agent_backend.codegen import api
from cuda_agent_backend.codegen.api import as_it_stands
from cuda_agent_backend.codegen.cuda.reroll.writer import CudaStepLoop
from cuda_agent_backend.codegen.ir.device import DeviceFacts
from cuda_agent_backend.codegen.ir.failure import Unsupported
from cuda_agent_backend.codegen.ir.schedule import Schedule
from cuda_agent_backend.codegen.loop_nests import LoopNests
from sandbox.accuracy.oracle import run_oracle
from sandbox.compile.candidate import compile_candidate
from sandbox.compile.outcome import Compiled
from sandbox.compile.toolchain import Missing, find_cuda
from sandbox.graph.build import build_graph
from sandbox.plan.candidate import Candidate

DEVICE = DeviceFacts()
STEPS = 11
INFINITY, NAN = float("inf"), float("nan")
Function = Callable[..., Any]


def state_space(x: Tensor, gate: Tensor, rates: Tensor, weight: Tensor, given: Tensor) -> Tensor:
    """Products and costly work before the loop, a sum in each step, more behind it: places of one tensor apart."""
    step = F.softplus(x @ weight)
    into, out = given.chunk(2, dim=-1)
    keep = torch.exp(-step[..., None] * rates.abs())
    add = (step * x)[..., None] * into[:, :, None]
    state = torch.zeros_like(add[:, 0])
    outputs = []
    for t in range(x.shape[1]):
        state = keep[:, t] * state + add[:, t]
        outputs.append((state * out[:, t, None]).sum(dim=-1))
    return (torch.stack(outputs, dim=1) + x) * F.silu(gate)


def spiking(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two results of each step; nothing is reduced."""
    charge, fired, charges = torch.zeros_like(x[0]), [], []
    for now in x.unbind(0):
        charge = 0.9 * charge + now
        spike = (charge > 0.5).to(x.dtype)
        charge = charge * (1 - spike)
        fired.append(spike)
        charges.append(charge)
    return torch.stack(fired), torch.stack(charges, dim=-1)


def advantages(rewards: Tensor, values: Tensor) -> Tensor:
    """From the last step to the first, which needs the value after it."""
    last, found = torch.zeros_like(rewards[:, 0]), list[Tensor]()
    for t in reversed(range(rewards.shape[1])):
        last = rewards[:, t] + 0.9 * values[:, t + 1] - values[:, t] + 0.8 * last
        found.append(last)
    return torch.stack(found[::-1], dim=1)


def reading_backward(x: Tensor, start: Tensor) -> Tensor:
    """The last place first; the state begins with a column of an input."""
    state, found = start[:, 1], list[Tensor]()
    for t in range(x.shape[1]):
        state = torch.tanh(state + x[:, x.shape[1] - 1 - t])
        found.append(state)
    return torch.stack(found, dim=1)


def oscillators(x: Tensor, place: Tensor, speed: Tensor) -> Tensor:
    """Two states, each of both before; the last speed is for nobody."""
    found = []
    for now in x.unbind(1):
        place, speed = place + 0.1 * speed, speed - 0.1 * place + now
        found.append(place)
    return torch.stack(found, dim=1)


def delta_rule(k: Tensor, v: Tensor, decay: Tensor) -> Tensor:
    """What is reduced goes into the state, along lanes that are not the last."""
    state = k.new_zeros(k.shape[0], k.shape[2], v.shape[2])
    found = []
    for t in range(k.shape[1]):
        key = k[:, t, :, None]
        seen = (state * key).sum(dim=1)
        state = decay[:, t, None, None] * state + key * (v[:, t] - seen)[:, None]
        found.append(seen)
    return torch.stack(found, dim=1)


def constant_in_another_layout(x: Tensor) -> Tensor:
    """Zeros that are turned and copied before the first step are still a constant."""
    state, found = x.new_zeros(x.shape[2], x.shape[0]), list[Tensor]()
    state = state.t().contiguous()
    for t in range(x.shape[1]):
        state = 0.5 * state + x[:, t]
        found.append(state)
    return torch.stack(found, dim=1)


def largest_so_far(x: Tensor) -> Tensor:
    """A reduction that is no sum, of odd length, in one step's result."""
    state, found = torch.full_like(x[:, 0], -1.0), list[Tensor]()
    for t in range(x.shape[1]):
        state = torch.maximum(0.5 * state, x[:, t])
        found.append(state.amax(dim=-1, keepdim=True) - 1)
    return torch.cat(found, dim=1)


def weighed_by_keys(k: Tensor, v: Tensor) -> Tensor:
    """Numerator and denominator begin with one zero; tracing makes one node of what the first step does to both."""
    above, below = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0])
    found = []
    for t in range(k.shape[1]):
        weight = k[:, t].exp()
        found.append((above + weight * v[:, t]) / (below + 2 * weight))
        above, below = 0.5 * above + weight * v[:, t], 0.5 * below + weight
    return torch.stack(found, dim=1)


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """Results of all steps behind each other, in one dimension."""
    state, found = torch.zeros_like(x[:, 0]), list[Tensor]()
    for t in range(x.shape[1]):
        keep = torch.sigmoid(gate[:, t])
        state = keep * state + (1 - keep) * torch.tanh(x[:, t])
        found.append(state)
    return torch.cat(found, dim=1)


def randn_of(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(randn(*shape) for shape in shapes)


CASES: dict[str, tuple[Function, tuple[Tensor, ...]]] = {
    "state space": (
        state_space,
        randn_of((2, STEPS, 24), (2, STEPS, 24), (24, 6), (24, 24), (2, STEPS, 12)),
    ),
    "spiking": (spiking, randn_of((STEPS, 3, 5))),
    "advantages": (advantages, randn_of((4, STEPS), (4, STEPS + 1))),
    "reading backward": (reading_backward, randn_of((4, STEPS, 3), (4, 2, 3))),
    "oscillators": (oscillators, randn_of((4, STEPS), (4,), (4,))),
    "delta rule": (delta_rule, randn_of((2, STEPS, 12), (2, STEPS, 5), (2, STEPS))),
    "constant in another layout": (constant_in_another_layout, randn_of((3, STEPS, 4))),
    "largest so far": (largest_so_far, randn_of((3, STEPS, 7))),
    "weighed by keys": (weighed_by_keys, (randn(3, STEPS, 4), randn(2, 3, STEPS, 4)[1])),
    "gated": (gated, randn_of((3, STEPS, 5), (3, STEPS, 5))),
    "half precision": (spiking, (randn(STEPS, 3, 6).half(),)),
}


def loop_of(name: str) -> tuple[Sample, CudaStepLoop]:
    function, inputs = CASES[name]
    made = on_cuda(function, *inputs)
    analysis = made.analysis
    assert isinstance(analysis, CudaStepLoop), analysis
    return made, analysis


def errors(found: Tensor, exact: Tensor) -> tuple[float, float]:
    gap = (found.double() - exact).abs()
    return float(gap.pow(2).mean().sqrt()), float(gap.max())


def check(made: Sample, source: str, plan: Any, folder: Path) -> None:
    """No result is further from float64's than eager's twice, and a few roundings."""
    task = replace(made.task, target="cpu")
    exact = run_oracle(task, build_graph(task), list(made.inputs)).outputs
    found = cuda_emulator.run(source, plan, list(made.inputs), folder)
    for own, eager, wide in zip(found, made.want, exact, strict=True):
        assert own.dtype == eager.dtype
        assert own.shape == eager.shape
        rounding = torch.finfo(own.dtype).eps * float(wide.abs().max())
        for ours, its in zip(errors(own, wide), errors(eager, wide), strict=True):
            assert ours <= 2 * its + 2 * rounding


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_goes_through_all_steps(name: str, tmp_path: Path) -> None:
    made, analysis = loop_of(name)
    assert analysis.form.steps == STEPS
    source, plan = analysis.emit(analysis.schedules(DEVICE)[0], DEVICE)
    assert len(plan.launches()) == (analysis.before is not None) + 1
    assert analysis.after is None
    check(made, source, plan, tmp_path)


@pytest.mark.parametrize("deal", [(1, 32, 1), (2, 64, 4), (3, 32, 8), (6, 256, 2)])
def test_lanes_are_dealt_in_many_ways(deal: tuple[int, ...], tmp_path: Path) -> None:
    made, analysis = loop_of("state space")
    best = analysis.schedules(DEVICE)[0]
    own = dict(zip(("each", "threads", "ahead"), deal, strict=True))
    before = [best.parameters(n) for n in range(1, len(best.kernels))]
    schedule = Schedule.of({"sketch": "loop", "before": len(before), **own}, *before)
    check(made, *analysis.emit(schedule, DEVICE), tmp_path)


def test_a_deal_that_does_not_fit_is_refused_with_a_reason() -> None:
    _, analysis = loop_of("largest so far")
    for wrong in ((2, 32, 1), (1, 48, 1), (1, 32, 3), (0, 32, 1), (7, 32, 16)):
        own = dict(zip(("each", "threads", "ahead"), wrong, strict=True))
        with pytest.raises(Unsupported):
            analysis.emit(Schedule.of({"sketch": "loop", "before": 0, **own}), DEVICE)
    with pytest.raises(Unsupported):
        analysis.emit(Schedule.of({"sketch": "loop", "each": 7}), DEVICE)


def test_numbers_that_end_and_are_none_pass_through_as_in_eager(tmp_path: Path) -> None:
    x = randn(4, STEPS, 3)
    x[0, 2, 1], x[1, 4, 0], x[2, 0, 2], x[3, 5, 1] = NAN, INFINITY, -INFINITY, -0.0
    for function, inputs in ((largest_so_far, (x,)), (reading_backward, (x, randn(4, 2, 3)))):
        made = on_cuda(function, *inputs)
        assert isinstance(made.analysis, CudaStepLoop)
        source, plan = made.analysis.emit(made.analysis.schedules(DEVICE)[0], DEVICE)
        (found,) = cuda_emulator.run(source, plan, list(made.inputs), tmp_path)
        torch.testing.assert_close(found, made.want[0], equal_nan=True)


def smoothed(x: Tensor) -> Tensor:
    """The first step is simpler than others."""
    state = x[:, 0]
    found = [state]
    for t in range(1, STEPS):
        state = 0.9 * state + 0.1 * x[:, t]
        found.append(state)
    return torch.stack(found, dim=1)


def smoothed_backward(x: Tensor) -> Tensor:
    state = x[:, STEPS - 1]
    found = [state]
    for t in reversed(range(STEPS - 1)):
        state = 0.9 * state + 0.1 * x[:, t]
        found.insert(0, state)
    return torch.stack(found, dim=2)


def normalised(x: Tensor, weight: Tensor) -> Tensor:
    """What follows joins other numbers than the steps do."""
    state, found = torch.zeros_like(x[:, 0]), list[Tensor]()
    for t in range(STEPS):
        state = 0.9 * state + x[:, t]
        found.append(state)
    return F.layer_norm(torch.stack(found, dim=1), weight.shape, weight)


def with_last(x: Tensor) -> tuple[Tensor, Tensor]:
    """The state after the last step beside the results."""
    state, found = torch.zeros_like(x[:, 0]), list[Tensor]()
    for t in range(STEPS):
        state = 0.9 * state + x[:, t]
        found.append(state.sum(-1))
    return torch.stack(found, dim=1), state * 2


def one_is_read(x: Tensor) -> Tensor:
    """A single step's result is needed by itself, and by all steps' users."""
    state, found = torch.zeros_like(x[:, 0]), list[Tensor]()
    for t in range(STEPS):
        state = 0.5 * state + x[:, t]
        found.append(state)
    return torch.stack(found, dim=1) * found[4][:, None]


def squared_before(x: Tensor) -> tuple[Tensor, Tensor]:
    """Beside the loop a result that it reads too."""
    square, state, found = torch.exp(x), torch.zeros_like(x[:, 0]), list[Tensor]()
    for t in range(STEPS):
        state = 0.5 * state + square[:, t].sum(-1, keepdim=True)
        found.append(state)
    return torch.stack(found, dim=1), square


@pytest.mark.parametrize(
    "function", [smoothed, smoothed_backward, normalised, with_last, one_is_read, squared_before]
)
def test_what_does_not_go_by_lanes_is_computed_behind(function: Function, tmp_path: Path) -> None:
    inputs = (randn(3, STEPS, 4), *([randn(4)] if function is normalised else []))
    made = on_cuda(function, *inputs)
    analysis = made.analysis
    assert isinstance(analysis, CudaStepLoop)
    check(made, *analysis.emit(analysis.schedules(DEVICE)[0], DEVICE), tmp_path)


def plan_kernel(candidate: Candidate) -> str:
    """The name of the loop's kernel, which is the last."""
    return candidate.plan.launches()[-1].kernel


def alone(x: Tensor) -> Tensor:
    """No step takes over anything."""
    return torch.stack([x[:, t] * 2 for t in range(STEPS)], dim=1)


def one_step_differs(x: Tensor) -> Tensor:
    state, found = torch.zeros_like(x[:, 0]), list[Tensor]()
    for t in range(STEPS):
        state = 0.5 * state + x[:, t] if t != 6 else 0.25 * state + x[:, t]
        found.append(state)
    return torch.stack(found, dim=1)


def skipping(x: Tensor) -> Tensor:
    """Places are not read one after another."""
    state, found = torch.zeros_like(x[:, 0]), list[Tensor]()
    for t in (0, 1, 2, 3, 4, 5, 6, 8, 7, 9, 10):
        state = 0.5 * state + x[:, t]
        found.append(state)
    return torch.stack(found, dim=1)


def two_before(x: Tensor) -> Tensor:
    """A step takes over from the one before the last."""
    older, state, found = x[:, 0] * 0, torch.zeros_like(x[:, 0]), list[Tensor]()
    for t in range(STEPS):
        older, state = state, 0.5 * older + x[:, t]
        found.append(state)
    return torch.stack(found, dim=1)


def many_are_read(x: Tensor) -> Tensor:
    """All steps' results are needed by themselves too."""
    state, found, squares = torch.zeros_like(x[:, 0]), list[Tensor](), list[Tensor]()
    for t in range(STEPS):
        state = 0.5 * state + x[:, t]
        found.append(state)
        squares.append(state * (t + 1))
    return torch.stack(found, dim=1) + sum(squares)[:, None]


def of_neighbours(x: Tensor) -> Tensor:
    """A lane takes over from the one beside it."""
    state, found = torch.zeros_like(x[:, 0]), list[Tensor]()
    for t in range(STEPS):
        state = state.transpose(1, 2) * 0.5 + x[:, t]
        found.append(state)
    return torch.stack(found, dim=1)


def with_numbers(x: Tensor) -> Tensor:
    """A number of each step is of another dtype, by which nothing is converted one by one."""
    factors = torch.linspace(0, 1, STEPS, dtype=torch.float64)
    state, found = torch.zeros_like(x[:, 0]), list[Tensor]()
    for t in range(STEPS):
        state = state * factors[t] + x[:, t]
        found.append(state)
    return torch.stack(found, dim=1)


def summed_wide(x: Tensor) -> Tensor:
    """Sums are of another dtype than what they add up."""
    state, found = torch.zeros_like(x[:, 0]), list[Tensor]()
    for t in range(STEPS):
        state = 0.5 * state + x[:, t]
        found.append(state.sum(-1, dtype=torch.float64))
    return torch.stack(found, dim=1)


def of_one_number(x: Tensor) -> Tensor:
    state, found = x[0].sum() * 0, list[Tensor]()
    for t in range(STEPS):
        state = 0.5 * state + x[t].sum()
        found.append(state)
    return torch.stack(found)


def before_the_beginning(x: Tensor) -> Tensor:
    """Slices that begin before the first place begin with it, all of them."""
    state, found = torch.zeros_like(x[:, :1]), list[Tensor]()
    for t in range(STEPS):
        state = 0.5 * state + x[:, t - 2 * STEPS : 1]
        found.append(state)
    return torch.cat(found, dim=1)


def of_length_one(x: Tensor) -> Tensor:
    state, found = torch.ones_like(x[:, 0]), list[Tensor]()
    for t in range(STEPS):
        state = state + x[:, t]
        state = state / state.square().sum(-1, keepdim=True).sqrt()
        found.append(state)
    return torch.stack(found, dim=1)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (with_numbers, (3, STEPS, 4)),
        (summed_wide, (3, STEPS, 4)),
        (of_one_number, (STEPS, 4)),
        (before_the_beginning, (3, STEPS, 4)),
        (of_length_one, (2, STEPS, 37)),
        (of_length_one, (2, STEPS, 2048)),
        (alone, (3, STEPS, 4)),
        (one_step_differs, (3, STEPS, 4)),
        (skipping, (3, STEPS, 4)),
        (of_neighbours, (3, STEPS, 4, 4)),
        (many_are_read, (3, STEPS, 4)),
    ],
)
def test_what_is_no_loop_over_lanes_is_left_to_others(
    function: Function, shape: tuple[int, ...]
) -> None:
    made = on_cuda(function, randn(*shape))
    found = as_it_stands(made.task)
    assert isinstance(found, LoopNests) and found.schedules(DEVICE)


def after_a_prompt(x: Tensor, prompt: Tensor) -> Tensor:
    """Before the steps' results is something longer."""
    state, found = torch.zeros_like(x[:, :1]), [prompt]
    for t in range(STEPS):
        state = 0.5 * state + x[:, t : t + 1]
        found.append(state)
    return torch.cat(found, dim=1)


def test_results_are_joined_behind_others_of_another_length(tmp_path: Path) -> None:
    made = on_cuda(after_a_prompt, randn(3, STEPS, 4), randn(3, 5, 4))
    analysis = made.analysis
    assert isinstance(analysis, CudaStepLoop)
    check(made, *analysis.emit(analysis.schedules(DEVICE)[0], DEVICE), tmp_path)


def test_a_state_of_the_step_before_the_last_is_two_states(tmp_path: Path) -> None:
    made = on_cuda(two_before, randn(3, STEPS, 4))
    analysis = as_it_stands(made.task)
    assert isinstance(analysis, CudaStepLoop) and len(analysis.form.states) == 2
    check(made, *analysis.emit(analysis.schedules(DEVICE)[0], DEVICE), tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_kernels_compile_and_keep_all_in_registers(name: str, tmp_path: Path) -> None:
    if isinstance(find_cuda(), Missing):
        pytest.skip("nvcc is not installed")
    _, analysis = loop_of(name)
    for number, schedule in enumerate(
        (analysis.schedules(DEVICE)[0], analysis.schedules(DEVICE)[-1])
    ):
        candidate = api.generate(analysis, schedule, DEVICE)
        assert isinstance(candidate, Candidate), candidate
        made = compile_candidate(candidate, tmp_path / str(number), "sm_90a")
        assert isinstance(made, Compiled), made
        assert made.facts[plan_kernel(candidate)]["spill_store_bytes"] == 0
