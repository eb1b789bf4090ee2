"""The eight models of `examples.models`, sized for two CPU cores."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.whole_models.subject import Made, Subject, of_values
from examples.models import MODELS


def _made(name: str, toy: bool) -> Made:
    """They have one size, and numbers of their own."""
    model, inputs = MODELS[name]()
    with torch.no_grad():
        target = torch.zeros_like(model(*inputs))
    return Made(model, inputs, target, of_values)


SUBJECTS = tuple(Subject(name, name.replace("_", " "), partial(_made, name)) for name in MODELS)
