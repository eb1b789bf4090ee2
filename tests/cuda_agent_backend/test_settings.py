"""The environment: defaults, parsing, and messages that name the variable at fault."""

from pathlib import Path

import pytest

from cuda_agent_backend.settings import VARIABLES, Settings, SettingsError


def test_an_empty_environment_gives_the_defaults_under_the_home_folder(tmp_path: Path) -> None:
    settings = Settings.from_environment({"HOME": str(tmp_path)})
    assert settings.cache_dir == tmp_path / ".cache" / "cuda_agent" / "kernels"
    assert (settings.search, settings.budget_s, settings.disable) == ("search", 120.0, False)


def test_every_variable_changes_its_field(tmp_path: Path) -> None:
    settings = Settings.from_environment(
        {
            "CUDA_AGENT_CACHE_DIR": str(tmp_path / "k"),
            "CUDA_AGENT_NATIVE_DIR": str(tmp_path / "n"),
            "CUDA_AGENT_SEARCH": "cached",
            "CUDA_AGENT_BUDGET_S": "7.5",
            "CUDA_AGENT_TOTAL_BUDGET_S": "19",
            "CUDA_AGENT_DISABLE": "1",
            "CUDA_AGENT_PROGRESS": "off",
            "CUDA_AGENT_DEVICE_LOCK": str(tmp_path / "lock"),
            "CUDA_AGENT_LOGS": "+hook,search,-splice",
        }
    )
    assert settings == Settings(
        tmp_path / "k",
        tmp_path / "n",
        "cached",
        "full",
        7.5,
        19.0,
        True,
        "off",
        tmp_path / "lock",
        (("hook", "DEBUG"), ("search", "INFO"), ("splice", "ERROR")),
    )
    assert Settings.from_environment({"CUDA_AGENT_EFFORT": "quick"}).effort == "quick"
    assert {v.field for v in VARIABLES} == set(Settings.__dataclass_fields__)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUDA_AGENT_SEARCH", "sometimes"),
        ("CUDA_AGENT_BUDGET_S", "-1"),
        ("CUDA_AGENT_BUDGET_S", "nan"),
        ("CUDA_AGENT_TOTAL_BUDGET_S", "0"),
        ("CUDA_AGENT_EFFORT", "much"),
        ("CUDA_AGENT_DISABLE", "yes"),
        ("CUDA_AGENT_LOGS", "++hook"),
        ("CUDA_AGENT_LOGS", "nonsense"),
        ("CUDA_AGENT_CACHE_DIRECTORY", "/x"),
    ],
)
def test_a_malformed_or_unknown_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings.from_environment({name: value})
