"""Recurrent modules in a graph: `nn.LSTM`, `nn.GRU` and `nn.RNN` as one operator each.

Dynamo breaks a graph at them, so that nothing around them is compiled together with them, and nothing can take their
place. It can be told not to, by a setting that holds for all backends; another one than ours would then run every step
by itself, which takes many times as long. So the setting says yes to us alone, and only in inference, and what torch
calls in a graph of ours is one of `sandbox.graph.recurrent_ops`'s operators before anything takes it apart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.nn.utils.rnn import PackedSequence

from cuda_agent_backend import log
from cuda_agent_backend.graph.inductor_lowering import give_lowering
from sandbox.graph.recurrent_ops import KINDS, operator_of

OURS = "of_cuda_agent"
"""The attribute by which a compiler of Dynamo graphs is known for one of ours."""
WRAPPERS = ("_torchdynamo_orig_backend", "compiler_fn")
"""By which names what `torch.compile` wraps around a compiler knows it."""
PACKING = {"pack_sequence", "pack_padded_sequence", "pad_packed_sequence", "PackedSequence"}
"""Names in functions that have to do with packed sequences."""
KIND_OF_FUNCTION = {getattr(torch, kind): kind for kind in KINDS}
_ARGUMENTS = ("hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional")
"""What torch's functions take behind their input, but for `batch_first`, which comes last."""


class _OursOnly(int):
    """True while Dynamo traces a graph for one of our compilers, where torch neither records gradients nor casts.

    A number, since torch writes its settings down as JSON.
    """

    def __bool__(self) -> bool:
        try:
            seen = sys._getframe(1).f_locals
            if torch.is_grad_enabled() or autocast_is_on() or _drops(seen) or _packs(seen):
                return False
            return _compiles_ours()
        except Exception as error:  # what is asked of Dynamo is nobody's promise
            log.logger("hook").debug("graphs break at recurrent modules: %s", error)
            return False

    def __repr__(self) -> str:
        return "False"

    def __reduce__(self) -> tuple[Any, ...]:
        """Where settings are kept, no asks to us are: this is what the setting is to anybody else."""
        return bool, (False,)


def _drops(seen: Mapping[str, Any]) -> bool:
    """Whether the module that Dynamo looks at, one of whose names it is, drops some of what it makes at random."""
    module = seen.get("value")
    return isinstance(module, nn.RNNBase) and module.training and module.dropout > 0


def _packs(seen: Mapping[str, Any]) -> bool:
    """Whether a function that Dynamo traces packs sequences, or has packed ones.

    No operator of ours takes them, and what the function does with them beside the module not every torch traces:
    2.11 fails, where it would have left the whole function to Python.
    """
    traced = getattr(seen.get("self"), "tx", None)
    while traced is not None:
        if not PACKING.isdisjoint(traced.f_code.co_names):
            return True
        if any(isinstance(value, PackedSequence) for value in traced.f_locals.values()):
            return True
        traced = getattr(traced, "parent", None)
    return False


def _compiles_ours() -> bool:
    from torch._dynamo.symbolic_convert import InstructionTranslator

    compiler: Any = InstructionTranslator.current_tx().output.compiler_fn
    for _ in range(len(WRAPPERS) + 1):
        if compiler is None or getattr(compiler, OURS, False):
            break
        compiler = next((vars(compiler)[n] for n in WRAPPERS if n in vars(compiler)), None)
    return compiler is not None and getattr(compiler, OURS, False)


def autocast_is_on() -> bool:
    """Whether autocast is on around what is compiled."""
    return any(torch.is_autocast_enabled(device) for device in ("cuda", "cpu"))


def trace_through() -> None:
    """Have Dynamo trace through recurrent modules for our compilers. In a thread of its own it may break there still.

    Where the user has set it, or torch does not know the setting, nothing changes.
    """
    from torch._dynamo import config

    try:
        if config.allow_rnn is False:
            config.allow_rnn = _OursOnly()  # type: ignore[assignment]
    except (AttributeError, TypeError) as error:
        log.logger("hook").debug("graphs break at recurrent modules: %s", error)


def mark_as_ours(compiler: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a compiler of Dynamo graphs as one that turns recurrent modules into operators."""
    setattr(compiler, OURS, True)
    return compiler


def use_operators(gm: GraphModule) -> str:
    """Put our operators in the place of torch's functions, in place. Why the graph cannot be compiled, or "".

    With gradients or dropout a call stays as it is: no module comes here with them, and what calls torch's functions
    itself had its steps taken apart before.
    """
    calls = [node for node in gm.graph.nodes if node.target in KIND_OF_FUNCTION]
    if any(map(_is_packed, calls)):
        return "a recurrent layer over a packed sequence"
    whole = [node for node in calls if not _learns_or_drops(node)]
    for node in whole:
        _replace(gm, node)
    if whole:
        gm.graph.lint()
        gm.recompile()
    return ""


def _arguments(node: Node) -> dict[str, Any]:
    """By name; of a packed sequence there is none called `batch_first`."""
    names = ("x", *_ARGUMENTS, "batch_first")
    return dict(zip(names, node.args, strict=False)) | node.kwargs


def _is_packed(node: Node) -> bool:
    return len(node.args) != len(_ARGUMENTS) + 2 or isinstance(_arguments(node)["params"], tuple)


def _learns_or_drops(node: Node) -> bool:
    given, value = _arguments(node), node.meta.get("example_value")
    results = value if isinstance(value, list | tuple) else ()
    learns = any(isinstance(one, torch.Tensor) and one.requires_grad for one in results)
    return learns or bool(given["dropout"] and given["train"])


def _replace(gm: GraphModule, node: Node) -> None:
    given = _arguments(node)
    states = given["hx"] if isinstance(given["hx"], list | tuple) else (given["hx"],)
    rest = [given[name] for name in ("has_biases", "num_layers", "bidirectional", "batch_first")]
    op = operator_of(KIND_OF_FUNCTION[node.target])
    give_lowering(op)
    with gm.graph.inserting_before(node):
        made = gm.graph.call_function(op, (given["x"], *states, list(given["params"]), *rest))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    gm.graph.erase_node(node)
