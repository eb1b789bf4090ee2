"""Options of torch.compile: ours and Inductor's in one dictionary."""

from pathlib import Path
from typing import Any

import pytest
from torch._inductor import config

from cuda_agent_backend.options import OURS, OptionError, Options, parse
from cuda_agent_backend.settings import Settings

SETTINGS = Settings(Path("/kernels"), Path("/native"), budget_s=33.0)


def test_without_options_the_environment_decides() -> None:
    options = parse(SETTINGS)
    assert (options.cache_dir, options.budget_s, dict(options.inductor)) == (
        Path("/kernels"),
        33.0,
        {},
    )


def test_our_keys_and_inductors_are_told_apart() -> None:
    given = {"cuda_agent.search": "cached", "cuda_agent.budget_s": 2, "max-autotune": False}
    given |= {"triton.cudagraphs": True}
    options = parse(SETTINGS, None, given)
    assert (options.search, options.budget_s) == ("cached", 2.0)
    assert options.inductor == {"max_autotune": False, "triton.cudagraphs": True}


def test_what_was_set_in_inductors_configuration_itself_goes_along() -> None:
    """But not its caches and passes; what torch.compile was given comes first."""
    here = {"max_autotune": True, "epilogue_fusion": False, "triton.cudagraphs": True}
    stays = {"force_disable_caches": True, "compile_threads": 1, "fx_graph_cache": False}
    with config.patch({**here, **stays, "post_grad_custom_pre_pass": print}):
        assert parse(SETTINGS).inductor == here
        given = parse(SETTINGS, "max-autotune-no-cudagraphs", {"epilogue_fusion": True})
    assert not {*given.inductor} & {*stays}
    assert given.inductor["epilogue_fusion"] is given.inductor["max_autotune"] is True
    assert parse(SETTINGS).inductor == {}


def test_what_inductors_variables_set_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    assert parse(SETTINGS).inductor == {"max_autotune": config.max_autotune}


def test_a_mode_becomes_inductors_options() -> None:
    assert parse(SETTINGS, "max-autotune-no-cudagraphs").inductor["max_autotune"] is True


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("cuda_agent.serch", "cuda_agent.search"),
        ("cuda_agent.budget", "cuda_agent.budget_s"),
        ("max_autotun", "max_autotune"),
        ("cuda_agent.max_autotune", "max_autotune"),
    ],
)
def test_an_unknown_key_names_the_nearest_valid_one(key: str, nearest: str) -> None:
    with pytest.raises(OptionError, match=f"did you mean '{nearest}'"):
        parse(SETTINGS, None, {key: 1})


def test_an_unknown_mode_names_the_nearest_valid_one() -> None:
    with pytest.raises(OptionError, match="did you mean 'reduce-overhead'"):
        parse(SETTINGS, "reduce-overheads")


@pytest.mark.parametrize(
    ("key", "value"),
    [("search", "x"), ("budget_s", 0), ("budget_s", True), ("min_speedup", 0.9), ("min_bytes", -1)],
)
def test_a_value_that_cannot_be_is_refused(key: str, value: Any) -> None:
    with pytest.raises(OptionError, match=key):
        parse(SETTINGS, None, {f"cuda_agent.{key}": value})


def test_every_key_of_ours_is_a_field() -> None:
    assert set(OURS) <= set(Options.__dataclass_fields__)


def test_code_that_torch_keeps_is_another_where_another_policy_may_search() -> None:
    def salt(**ours: Any) -> str:
        return parse(SETTINGS, None, {f"cuda_agent.{k}": v for k, v in ours.items()}).salt()

    assert salt(policy="search") == salt() != salt(policy="replay", model="file")
    assert salt(search="cached") == salt(search="cached", policy="replay", model="file")
    assert salt() != salt(allow_policy_cpp=True)
    assert salt() != salt(budget_s=1e6)
    assert salt(search="cached") == salt(search="cached", budget_s=1e6)
