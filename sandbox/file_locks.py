"""Locks on files (`flock`), which the system takes from a process when that ends.

It stands below `timing` and `memory`, which know nothing of each other and both need it, and below `scratch`, which
all of them may use; so it imports nothing of ours.
"""

from __future__ import annotations

import fcntl


def lock_at_once(descriptor: int, kind: int) -> bool:
    """Lock an open file if that needs no waiting; whether it did.

    kind: `fcntl.LOCK_EX` or `fcntl.LOCK_SH`. A lock that the descriptor has already becomes one of this kind. Raises
    OSError where the file system has no locks, or there are too many.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
