"""The command line: what it accepts, what it says, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent_backend.cli import command as cli
from cuda_agent_backend.runtime.child_process import child_environment
from cuda_agent_backend.tools.load_model import BadTarget, LoadedModel, load_model

GOOD = """
import torch
def make():
    return torch.nn.Linear(3, 2), (torch.ones(1, 3),)
def one_tensor():
    return torch.nn.Linear(3, 2), torch.ones(1, 3)
def no_tuple():
    return torch.nn.Linear(3, 2)
def no_module():
    return (lambda x: x), (torch.ones(1),)
def breaks():
    raise RuntimeError("no weights")
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(GOOD)
    return path


def test_a_good_target_gives_the_model_and_its_inputs(models: Path) -> None:
    found = load_model(f"{models}:make")
    assert isinstance(found, LoadedModel)
    assert found.name == "make"
    assert found.model(*found.inputs).shape == (1, 2)


def test_a_single_tensor_is_taken_as_the_only_input(models: Path) -> None:
    found = load_model(f"{models}:one_tensor")
    assert isinstance(found, LoadedModel)
    assert len(found.inputs) == 1


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("{}", "is not FILE:FUNCTION"),
        (":make", "is not FILE:FUNCTION"),
        ("{}:not-a-name", "is not FILE:FUNCTION"),
        ("absent.py:make", "no file absent.py"),
        ("{}:made", "has no function 'made'; it has make, one_tensor"),
        ("{}:no_tuple", "must return (model, inputs), not Linear"),
        ("{}:no_module", "the model is function, not torch.nn.Module"),
        ("{}:breaks", "RuntimeError: no weights (at "),
    ],
)
def test_a_bad_target_says_what_is_wrong(models: Path, target: str, said: str) -> None:
    found = load_model(target.format(models))
    assert isinstance(found, BadTarget)
    assert said in found.reason


def test_a_file_that_cannot_be_imported_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("x = 1\ny = x / 0\n")
    found = load_model(f"{path}:make")
    assert isinstance(found, BadTarget)
    assert "ZeroDivisionError" in found.reason
    assert f"{path}:2" in found.reason


@pytest.mark.parametrize("command", ["warm", "explain"])
def test_a_bad_target_ends_the_command_with_status_2(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "absent.py:make"]) == cli.USAGE
    assert capsys.readouterr().err == "cuda-agent: no file absent.py\n"


def test_a_malformed_environment_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_AGENT_BUDGET_S", "soon")
    assert cli.main(["cache", "list"]) == cli.USAGE
    assert "CUDA_AGENT_BUDGET_S='soon'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-3", "nan", "inf", "soon"])
def test_a_budget_is_a_number_of_seconds_above_zero(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["warm", "a.py:f", f"--budget={text}"])
    assert caught.value.code == cli.USAGE
    assert "is not a number of seconds above 0" in capsys.readouterr().err


def test_json_goes_to_the_file_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "new" / "found.json"
    assert cli.main(["cache", "list", "--json", str(path)]) == 0
    assert json.loads(path.read_text())["records"] == []
    assert [p.name for p in path.parent.iterdir()] == ["found.json"]


def test_json_that_cannot_be_written_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["cache", "list", "--json", str(tmp_path / "file" / "x.json")]) == cli.USAGE
    assert "cuda-agent:" in capsys.readouterr().err


def test_an_interrupt_ends_with_status_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(args: object, settings: object) -> tuple[int, dict[str, object]]:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "doctor", interrupted)
    assert cli.main(["doctor"]) == cli.INTERRUPTED
    assert "interrupted" in capsys.readouterr().err


def test_the_command_line_starts_without_torch() -> None:
    code = "import sys, cuda_agent_backend.cli.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=child_environment()).returncode == 0
