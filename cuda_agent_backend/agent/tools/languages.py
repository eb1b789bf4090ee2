"""The languages in which a policy writes kernels, told by the suffixes of sources."""

from __future__ import annotations

from typing import cast, get_args

from cuda_agent_backend.agent.protocol import BadArguments
from sandbox.plan.candidate import Language

LANGUAGES = {".cu": "cuda", ".cpp": "c++", ".cc": "c++", ".py": "triton"}
"""By the suffix of a source."""


def language_of(source: str, target: str) -> Language:
    """The language of a source file. Raises BadArguments where there is none for the target."""
    suffix = source[source.rfind(".") :] if "." in source else ""
    wanted = [s for s, of in LANGUAGES.items() if (of == "c++") == (target == "cpu")]
    if suffix not in wanted:
        raise BadArguments(f"{source!r}: a source for {target} ends in {' or '.join(wanted)}")
    if LANGUAGES[suffix] not in get_args(Language):
        raise BadArguments(f"{source!r}: {LANGUAGES[suffix]} sources cannot be compiled here")
    return cast(Language, LANGUAGES[suffix])
