"""A tokenizer of bytes with a chat template that knows tools, and something that samples what it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kit.chat import template

from cuda_agent_backend.agent.policies.engine import EngineFailed, Sampled

END = "<|end|>"
TEMPLATE = template("{% for tool in tools %}{{ tool.function.name }} {% endfor %}")


def byte_tokenizer(template: str = TEMPLATE) -> Any:
    """Each byte is an id, and so is each mark."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=END,
        pad_token="<|pad|>",
        additional_special_tokens=["<|im|>"],
        chat_template=template,
    )


class Speaker:
    """Says texts, one after another; one that ends in ~ is cut off there. given: what it was asked with, each time.

    A text may be a function of the conversation so far. The log-probability of the n-th id that it says is -n.
    """

    def __init__(self, tokenizer: Any, *texts: str | Callable[[str], str] | Exception) -> None:
        self.tokenizer, self.texts = tokenizer, list(texts)
        self.given: list[list[int]] = []
        self.said: list[list[int]] = []
        self.rooms: list[int] = []

    async def __call__(self, ids: Sequence[int], room: int) -> Sampled | EngineFailed:
        self.given.append(list(ids))
        self.rooms.append(room)
        if not self.texts:
            return EngineFailed("the server is gone")
        text = self.texts.pop(0)
        if isinstance(text, Exception):
            raise text
        text = text(self.tokenizer.decode(ids)) if callable(text) else text
        cut = text.endswith("~")
        found = self.tokenizer(text.removesuffix("~"), add_special_tokens=False)["input_ids"]
        found = [*found, *([] if cut else [self.tokenizer.eos_token_id])][:room]
        start = sum(map(len, self.said)) + 1
        self.said.append(found)
        ended = found[-1] == self.tokenizer.eos_token_id
        return Sampled(tuple(found), tuple(-float(start + n) for n in range(len(found))), ended)
