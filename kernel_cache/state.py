"""Identity and generation: what other caches' keys are made of, so that they never go stale."""

from __future__ import annotations

import uuid

from kernel_cache import layout
from kernel_cache.canonical import dumps, sha256
from kernel_cache.faults import IndexMalformed
from kernel_cache.index import Index, is_absent
from kernel_cache.layout import Layout

READS = 3
"""How often a fingerprint is read without keeping others from the index."""


def identity_of(index: Index, places: Layout) -> str:
    """The folder's random id, made on the first call of all processes.

    Raises IndexMalformed if there are records already: then the index was lost or emptied, and to
    take it for new would make a miss of every kernel.
    """
    found = index.get(layout.IDENTITY)
    if is_absent(found):
        with index.transaction():
            found = index.get(layout.IDENTITY)
            if is_absent(found):
                if next(places.records.digests(), None) is not None:
                    raise IndexMalformed("the index is empty though there are records")
                found = make_identity(index)
    if not isinstance(found, str):
        raise IndexMalformed("the folder's identity is not text", repr(found))
    return found


def make_identity(index: Index) -> str:
    """Give the folder a new id; only in a transaction."""
    made = uuid.uuid4().hex
    index.set(layout.IDENTITY, made)
    return made


def generation_of(index: Index) -> int:
    """How many changes of kernels there have been."""
    found = index.get(layout.GENERATION)
    if is_absent(found):
        return 0
    if isinstance(found, bool) or not isinstance(found, int):
        raise IndexMalformed("the generation is not a number", repr(found))
    return found


def bump_generation(index: Index) -> int:
    """Count one change; only in the transaction that makes it. The generation after it."""
    following = generation_of(index) + 1
    index.set(layout.GENERATION, following)
    return following


def fingerprint_of(index: Index, identity: str) -> tuple[int, str]:
    """Generation and fingerprint, of one moment: who writes is not waited for, unless one change follows the other."""
    for _ in range(READS):
        generation, rows = generation_of(index), _rows(index)
        if generation_of(index) == generation:
            break
    else:
        with index.transaction():
            generation, rows = generation_of(index), _rows(index)
    return generation, sha256(dumps([identity, generation, rows]).encode())


def _rows(index: Index) -> list[list[str]]:
    return [[name, _row_text(index, name)] for name in index.names(layout.RECORD)]


def _row_text(index: Index, name: str) -> str:
    try:
        return repr(index.get(name))
    except IndexMalformed as error:
        return error.text
