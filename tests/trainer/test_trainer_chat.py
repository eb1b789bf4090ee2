"""A language model composes through a server on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cuda_agent_backend"))
from endpoint_kit import endpoint, said

from trainer.synthesis.compose.chat import ChatComposer, policy_of
from trainer.synthesis.compose.task import Composed, NotComposed, Wishes

PROGRAM = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.randn(4, 4)]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize("text", [f"Here it is.\n```python\n{PROGRAM}```", PROGRAM])
def test_the_code_of_an_answer_is_the_task(text: str) -> None:
    pytest.importorskip("openai")
    with endpoint(said(text)) as server:
        policy = policy_of("some-model", server.url)
        assert not isinstance(policy, str)
        found = ChatComposer(policy, Wishes.of("cpu")).compose(3, 0)
    assert isinstance(found, Composed) and found.code == PROGRAM
    asked = server.asked[0]["messages"][0]["content"]
    assert all(op in asked for op in found.ops)
    assert found.provenance["composer"] == "openai"


def test_an_answer_without_code_is_no_task() -> None:
    pytest.importorskip("openai")
    with endpoint(said("I would rather not.")) as server:
        policy = policy_of("some-model", server.url)
        assert not isinstance(policy, str)
        found = ChatComposer(policy, Wishes.of("cpu")).compose(3, 0)
    assert isinstance(found, NotComposed)


def test_a_model_has_to_be_named() -> None:
    assert "--model" in str(policy_of("", ""))
