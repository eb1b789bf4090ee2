"""JSON objects from any values, and their files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """JSON values only: what is neither becomes text, and what is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def object_in(text: Any) -> dict[str, Any]:
    """The JSON object that a text is; an empty one of anything else."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object aside and rename it into place, so that a reader never sees half of it. May raise OSError.

    What is not finite becomes null, what JSON does not know becomes text.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    text = json.dumps(plain(value), indent=1, sort_keys=True, allow_nan=False)
    aside.write_text(text + "\n", encoding="utf-8")
    aside.replace(path)
