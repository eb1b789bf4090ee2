"""Names under which the acceptance table keeps what was decided of a graph.

Each name holds all that the decision depends on, so that none is used where it was not made.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cuda_agent_backend.acceptance.rule import RULE
from cuda_agent_backend.runtime.machine import all_flags, arch_of
from kernel_cache import KernelKey


def acceptance_digest(digest: str) -> str:
    """The name of a graph in the acceptance table: its digest under this torch, whose Inductor is the rival, and under
    the rule by which it is decided."""
    return _sha256(f"{digest}:{torch.__version__}:{RULE}")


def kernel_set_digest(keys: Sequence[KernelKey]) -> str:
    """One name for a set of kernels."""
    return _sha256("\n".join(sorted(key.digest for key in keys)))


def whole_graph_digest(
    digest: str,
    inductor: Mapping[str, Any],
    static_inputs: Sequence[int] | None,
    eager_layouts: bool,
) -> str:
    """The name of a graph with its kernels. Where it may be replayed that is measured without any, too.

    digest: of the graph. inductor: the user's options of Inductor. static_inputs: which inputs are parameters, None
    where the graph is not to be replayed.
    """
    if static_inputs is None:
        own = json.dumps(inductor, sort_keys=True)
        return acceptance_digest(f"{digest}:{own}" if own != "{}" else digest)
    where = [_circumstances("cuda", inductor), list(static_inputs), eager_layouts]
    return acceptance_digest(f"{digest}:replayed:{json.dumps(where, sort_keys=True)}")


def layouts_digest(digest: str, device: str, inductor: Mapping[str, Any]) -> str:
    """The name of the choice of layouts: no key of a kernel says for which machine, flags and options it is."""
    where = json.dumps(_circumstances(device, inductor), sort_keys=True)
    return _sha256(f"{acceptance_digest(digest)}:{where}")


def replay_digest(name: str, inductor: Mapping[str, Any]) -> str:
    """The name under which it is kept whether a graph of Dynamo's, of this name, is replayed."""
    return acceptance_digest(json.dumps([name, _circumstances("cuda", inductor)], sort_keys=True))


def _circumstances(device: str, inductor: Mapping[str, Any]) -> list[Any]:
    """What decides how fast Inductor's code is, beside the graph."""
    return [arch_of(device), all_flags()["torch"], inductor]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
