"""The demo: what it concludes from its two processes, and the whole of it once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cuda_agent_backend.cli import command as cli
from cuda_agent_backend.cli.demo import Demo, DemoFailed, budget_of, combine, run
from cuda_agent_backend.tools import tables


def phase(**changes: Any) -> dict[str, Any]:
    model = {
        "regions": 3,
        "promoted": 2,
        "speedup": {"median": 1.2, "low": 1.1, "high": 1.3, "pairs": 20},
        "error_ratio": 0.9,
        "accurate": True,
        "first_seconds": 50.0,
    }
    return {"target": "cpu", "models": {"vit": {**model, **changes}}, "machine": {"cores": 2}}


def test_the_result_has_the_promised_form() -> None:
    found = combine(phase(), phase(first_seconds=4.0, error_ratio=1.5)).to_json()
    assert found == {
        "target": "cpu",
        "models": [
            {
                "name": "vit",
                "regions": 3,
                "promoted": 2,
                "speedup": {"median": 1.2, "low": 1.1},
                "error_ratio": 1.5,
                "accurate": True,
                "cold_seconds": 50.0,
                "cached_seconds": 4.0,
                "kernels": [],
            }
        ],
        "machine": {"cores": 2},
    }


def test_the_result_has_whole_schedules_and_why_a_kernel_is_not_used() -> None:
    told = {"operators": {"exp": 1}, "speedup": 1.2, "status": "dropped", "reason": "slower"}
    regions = [{**told, "label": '[{"lanes":"inner","unroll":4}]'}, {**told, "label": ""}]
    (model,) = combine(phase(graphs=[{"regions": regions}]), phase()).to_json()["models"]
    (kernel,) = model["kernels"]
    assert kernel["schedule"] == '[{"lanes":"inner","unroll":4}]'
    assert (kernel["used"], kernel["why_not"]) == (False, "slower")


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"accurate": False}, False),
        ({"promoted": 1}, False),
        ({"speedup": {"median": 0.9, "low": 0.85, "high": 0.95, "pairs": 20}}, False),
        ({"speedup": {"median": 0.99, "low": 0.95, "high": 1.02, "pairs": 20}}, True),
    ],
)
def test_a_second_process_that_does_worse_is_not_as_promised(
    change: dict[str, Any], good: bool
) -> None:
    assert combine(phase(), phase(**change)).as_promised is good


def test_models_share_the_time_and_inherit_what_others_leave() -> None:
    assert budget_of(270.0, 3, 120.0) == 60.0
    assert budget_of(200.0, 2, 120.0) == 70.0
    assert budget_of(270.0, 1, 120.0) == 120.0
    assert budget_of(-30.0, 2, 120.0) == 20.0
    assert budget_of(270.0, 3, 5.0) == 5.0


def test_without_the_models_it_says_where_to_run_it(tmp_path: Path) -> None:
    found = run(Demo(tmp_path / "absent.py", tmp_path, 1.0))
    assert isinstance(found, DemoFailed)
    assert "--models" in found.reason


def test_a_process_that_fails_ends_the_demo(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models.py").write_text("")
    found = run(Demo(tmp_path / "models.py", tmp_path, 1.0, ("absent",)))
    assert isinstance(found, DemoFailed)
    assert "status 2" in found.reason
    assert "has no function 'absent'" in capfd.readouterr().err


MODEL = """
import torch
def norm():
    torch.manual_seed(0)
    return torch.nn.LayerNorm(1024).eval(), (torch.randn(512, 1024),)
"""


@pytest.mark.slow
def test_the_whole_of_it_with_a_small_model(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODEL)
    found = run(Demo(tmp_path / "models.py", tmp_path, 20.0, ("norm",)))
    assert not isinstance(found, DemoFailed), found
    assert found.models[0].regions == 1
    assert found.models[0].accurate
    assert found.models[0].cached_promoted == found.models[0].promoted


def test_it_is_reached_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["demo", "--models", str(tmp_path / "absent.py"), "--build-dir", str(tmp_path)]
    assert cli.main([*words, "--json", str(tmp_path / "demo.json")]) == cli.USAGE
    assert "absent.py" in capsys.readouterr().err
    assert not (tmp_path / "demo.json").exists()


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("", "-"),
        ("by hand", "by hand"),
        ('[{"lanes":"inner","stream":0,"threads":1,"unroll":4,"width":8}]', "inner unroll 4"),
        ('[{"rows":96,"threads":1,"width":8}]', "product rows 96"),
        ('[{"rows":32,"keys":64,"width":8}]', "attention rows 32 keys 64"),
        ('[{"sketch":"row","keep":"registers","threads":256}]', "row keep registers threads 256"),
        ('[{"lanes":"inner"},{"lanes":"inner"},{"lanes":"outer"}]', "2x inner + outer"),
        ('[{"lanes":"a"},{"lanes":"b"},{"lanes":"c"},{"lanes":"d"}]', "a + b + 2 more"),
        ("[1]", "[1]"),
        ("[]", "-"),
    ],
)
def test_a_schedule_is_shown_in_short(label: str, shown: str) -> None:
    assert tables.sketch_name(label) == shown
