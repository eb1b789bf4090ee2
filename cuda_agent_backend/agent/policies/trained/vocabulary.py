"""The words of the small policy, and its tokenizer: one id for each word, nothing else.

What there is no word for (an operator or a parameter that came later) gets one of a fixed number of words by its
checksum, so no text is unknown and the ids of old weights stay what they were.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cuda_agent_backend.agent.policies.trained.numbers import NUMBER_WORDS
from cuda_agent_backend.codegen.ir.parameters import OF_ANY, meanings
from cuda_agent_backend.codegen.registry import FAMILIES

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_SCHEDULES = 64
"""Schedules proposed that a policy is told of."""
MOST_CANDIDATES = 64
MOST_KERNELS = 16
MOST_REFERENCES = 64
BUCKETS = {"op": 1024, "p": 64, "v": 64, "w": 64}
"""Words by checksum, of each kind: operators, parameters, numbers, other names."""
TOOLS = ("look", "sketch", "inspect", "verify", "profile", "submit")
CALLS = (*(f"<{tool}>" for tool in TOOLS), "<give_up>")
"""What begins a call."""
ENDS_EPISODE = ("<submit>", "<give_up>")
MARKS = (
    "<pad>", "<end>", "<assistant>", "<tool>", "<user>", "<task>", "<over>", "<cutoff>", "<said>", "<cut>", "<budget>",
    "<in>", "<out>", "<op>", "<all>", "<space>", "<near>", "<ok>", "<error>", "<set>", "<facts>", *CALLS,
)  # fmt: skip
STATES = (
    "wins", "correct", "too_slow", "wrong", "noisy", "unchecked", "refused", "crashed", "timed_out", "compile_error",
    "failed", "ended",
)  # fmt: skip
DTYPES = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)
LAYOUTS = ("contiguous", "permuted", "expanded", "strided")


def words() -> list[str]:
    """All words, in the order of their ids."""
    named = [*MARKS, *(f"status:{s}" for s in STATES), *(f"dtype:{d}" for d in DTYPES)]
    named += [f"layout:{name}" for name in LAYOUTS] + ["target:cpu", "target:cuda"]
    named += [f"reward:{n}" for n in (-1, 1, 2, 3)] + NUMBER_WORDS
    named += [f"<s:{n}>" for n in range(MOST_SCHEDULES)]
    named += [f"<c:{n}>" for n in range(MOST_CANDIDATES)]
    named += [f"k:{n}" for n in range(MOST_KERNELS)]
    named += [f"{kind}:{n}" for kind in ("i", "n") for n in range(MOST_REFERENCES)]
    named += [f"p:{name}" for name in _parameters()]
    named += [f"v:{n}" for n in _values()] + [f"v:{word}" for word in _choices()]
    named += [f"{kind}#{n}" for kind, most in BUCKETS.items() for n in range(most)]
    return list(dict.fromkeys(named))


def known_or_bucket(word: str, known: frozenset[str]) -> str:
    """The word, or what stands for it: ``kind#checksum``. A word of no kind that has buckets is a ``w``."""
    if word in known:
        return word
    kind, _, name = word.partition(":")
    kind = kind if kind in BUCKETS else "w"
    return f"{kind}#{zlib.crc32(name.encode()) % BUCKETS[kind]}"


def tokenizer_of(vocabulary: Sequence[str]) -> Tokenizer:
    """A tokenizer of words between spaces, whose ids are places in the vocabulary."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    made = Tokenizer(WordLevel({w: n for n, w in enumerate(vocabulary)}, unk_token="<cut>"))
    made.pre_tokenizer = WhitespaceSplit()
    return made


def _families() -> list[type]:
    return [family.params for family in itertools.chain.from_iterable(FAMILIES.values())]


def _parameters() -> list[str]:
    return sorted({*OF_ANY, *(name for params in _families() for name in meanings(params))})


def _choices() -> list[str]:
    """Words that parameters have as values."""
    every = (m for params in _families() for m in meanings(params).values())
    named = {family.name for family in itertools.chain.from_iterable(FAMILIES.values())}
    among = {str(value) for m in every for value in m.among if isinstance(value, str)}
    return sorted(name for name in named | among if not set(name) & set(" \t\n"))


def _values() -> list[int]:
    """Numbers that schedules have."""
    powers = [factor << shift for factor in (1, 3, 5, 7) for shift in range(18)]
    return sorted({*range(65), *(p for p in powers if p <= 1 << 20)})
