"""A language model composes: asked through the agent's client, answered with the code of a task."""

from __future__ import annotations

import ast
import random
import re
from typing import Protocol

from cuda_agent_backend.agent.policies.spec import PolicySpec, Sampling
from cuda_agent_backend.agent.protocol import Message, Schema, Stopped, Turn
from trainer.synthesis.compose.rules import seeds_by_family
from trainer.synthesis.compose.task import Composed, NotComposed, Wishes
from trainer.synthesis.seeds.torch_seeds import split_name

ASKED = """Write one Python file that defines a class Model(torch.nn.Module), get_inputs() and get_init_inputs().
Its forward pass uses these operators, each of which changes the result: {ops}.
get_inputs returns a list of tensors for forward, get_init_inputs a list of arguments for Model.
Use torch only. Draw inputs with torch.randn or torch.randint. Use no dropout and nothing else that is random in
forward. The inputs have about {elements} elements in all. Every input and every weight must change the result.
Answer with the file in one block of code."""
BLOCK = re.compile(r"```(?:python)?\s*\n(.*?)```", re.DOTALL)
ELEMENTS = {"cuda": 1 << 23, "cpu": 1 << 18}


class Chat(Protocol):
    """What answers messages: a policy of the agent."""

    def act(self, messages: list[Message], tools: list[Schema]) -> Turn | Stopped:
        """The next message."""
        ...


def policy_of(model: str, base_url: str) -> Chat | str:
    """The agent's client for an endpoint; or what is lacking."""
    from cuda_agent_backend.agent.policies import endpoint

    if not model:
        return "--composer openai needs --model"
    spec = PolicySpec("openai", model, base_url, Sampling())
    try:
        return endpoint.make(spec)
    except ImportError as error:
        return f"--composer openai: {error}"


class ChatComposer:
    """The operators are drawn by rule from the seed number; the model writes the program."""

    name = "openai"
    trusted = False
    scales = True

    def __init__(self, policy: Chat, wishes: Wishes) -> None:
        self._policy, self._wishes = policy, wishes

    def compose(self, seed: int, rung: int) -> Composed | NotComposed:
        """See `Composer.compose`. The size is asked for, so a model that takes no notice of it is not scaled."""
        rng = random.Random(f"cuda_agent chat {seed}")
        by_family = seeds_by_family()[rng.choice(("rows", "tokens", "image"))]
        families = rng.sample(sorted(by_family), rng.choice((1, 2, 3, 3, 4, 5)))
        ops = tuple(split_name(rng.choice(by_family[family]))[0] for family in families)
        elements = int(ELEMENTS[self._wishes.device] * 2.0**rung)
        asked = ASKED.format(ops=", ".join(ops), elements=elements)
        answer = self._policy.act([{"role": "user", "content": asked}], [])
        if isinstance(answer, Stopped):
            return NotComposed(f"no answer: {answer.reason}")
        code = code_of(answer.content)
        if code is None:
            return NotComposed("the answer holds no Python file")
        return Composed(
            code=code,
            ops=ops,
            families=tuple(families),
            source=f"torch#{len(ops)}",
            dtype="float32",
            training=False,
            pattern="free",
            small=False,
            provenance={"composer": self.name, "seed": seed, "rung": rung},
        )


def code_of(answer: str) -> str | None:
    """The last block of code of an answer that is Python and defines what a task defines; None if there is none."""
    for block in reversed(BLOCK.findall(answer) or [answer]):
        try:
            names = {getattr(node, "name", "") for node in ast.parse(block).body}
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if {"Model", "get_inputs", "get_init_inputs"} <= names:
            return str(block)
    return None
