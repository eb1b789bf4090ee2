"""Where the small policy's weights are, and whether there are any; loads nothing."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

TENSORS = "model.safetensors"
HOW = "make some with `cuda-agent-train run CONFIG --out DIR`, and name the folder DIR/policy with --model"


def shipped() -> Path:
    """Where the weights of the package are, whether or not there are any."""
    return Path(str(files("trainer"))) / "weights"


def folder_of(model: str) -> Path:
    """The folder that a policy's model names; by default the shipped one."""
    return Path(model) if model else shipped()


def why_missing(model: str) -> str:
    """Why there are no weights to speak with; "" where there are."""
    folder = folder_of(model)
    if (folder / TENSORS).is_file():
        return ""
    where = f"{folder} holds no weights" if model else "no weights are in the package"
    return f"the policy 'trained' cannot be used: {where}; {HOW}"
