"""How often weights were changed where torch does not see it; imports nothing."""

_changes = 0


def weights_changed() -> None:
    """Tell compiled models that weights were changed where torch does not see it (see the option `prepack`).

    What was computed from weights alone is then computed anew in each model's next call. In-place operators of torch
    are seen without it; writes through ``.data``, kernels of other libraries and a replayed CUDA graph are not.
    """
    global _changes
    _changes += 1


def unseen_changes() -> int:
    """How often `weights_changed` was called in this process."""
    return _changes
