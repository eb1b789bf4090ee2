"""Our kernels in packages that torch compiles ahead of time from an exported program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuda_agent_backend.backend import make_pass
from cuda_agent_backend.graph.layouts import unchosen
from cuda_agent_backend.options import parse
from cuda_agent_backend.settings import Settings


def inductor_configs(
    mode: str | None = None, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What `torch._inductor.aoti_compile_and_package` takes as `inductor_configs` to put our kernels in.

    mode, options: as for `torch.compile`. A package names kernels and does not hold them: where it is loaded, the
    kernel cache has to have them. Raises `SettingsError` or `OptionError` on a wrong wish. Where the kernel cache
    cannot be used, which is said once, the package is Inductor's alone.
    """
    wishes = parse(Settings.from_environment(), mode, options)
    hook = None if wishes.disable else make_pass(wishes)
    if hook is None:
        return dict(wishes.inductor)
    hook.replayable = False  # a package has no CUDA graphs of ours
    return {**unchosen(), **wishes.inductor, "post_grad_custom_post_pass": hook}
