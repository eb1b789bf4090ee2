"""The compiler backend `cuda_agent`: Inductor's code, with verified faster kernels where there are any.

Importing this package does nothing. `backend.cuda_agent` is the entry point, `tools.warm.warm` searches ahead of time,
`tools.explain.explain` says what would happen to a model and why.
"""


def weights_changed() -> None:
    """Tell compiled models that weights were changed where torch does not see it (see the option `prepack`).

    What was computed from weights alone is then computed anew in each model's next call. In-place operators of torch
    are seen without it; writes through ``.data``, kernels of other libraries and a replayed CUDA graph are not.
    """
    from cuda_agent_backend.frontend.prepack import weights_changed as have_computed_anew

    have_computed_anew()
