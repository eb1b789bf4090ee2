"""Headers of generated source: each is one text, whatever parts it is made of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cuda_agent_backend.codegen.ir import headers
from cuda_agent_backend.codegen.ir.headers import header

FOLDER = Path(headers.__file__).parents[1]
NAMES = sorted(
    str(path.relative_to(FOLDER)) for end in ("h", "cuh") for path in FOLDER.rglob(f"*.{end}")
)


@pytest.mark.parametrize("name", ["cpu/prelude.h", "cuda/common/prelude.cuh"])
def test_parts_stand_where_they_are_included(name: str) -> None:
    whole, place = header(name), 0
    parts = re.findall(r'^#include "(.+)"$', (FOLDER / name).read_text(), re.MULTILINE)
    assert len(parts) == 7
    for part in parts:
        text = (FOLDER / name).parent.joinpath(part).read_text()
        assert whole.count(text) == 1
        place, before = whole.index(text) + len(text), place
        assert place > before
    assert whole.rstrip().endswith("}  // namespace ca")


@pytest.mark.parametrize("name", NAMES)
def test_no_text_includes_a_file_of_ours(name: str) -> None:
    assert '#include "' not in header(name)
