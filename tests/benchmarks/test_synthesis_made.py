"""How fast a set was made, and whether it is the same when it is made again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import synthesis_again, synthesis_rate

IDENTITY = {"seed": 0, "device_name": "H", "part": [1, 2]}


def kept(seed: int, code: str) -> dict[str, Any]:
    return {"seed": seed, "status": "passed", "task": {"code": code}}


def dropped(seed: int, filter: str) -> dict[str, Any]:
    return {"seed": seed, "status": "dropped", "filter": filter, "reason": "so"}


def piece(folder: Path, *entries: dict[str, Any], **identity: Any) -> Path:
    folder.mkdir()
    lines = [{"identity": IDENTITY | identity}, *entries]
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def written(program: Any, words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("sys.argv", ["it", "data/ops-h.parquet", *words, "--folder", str(folder)])
    program.main()
    return json.loads((folder / "synthesis.json").read_text())


def test_tasks_that_are_made_again_are_compared_by_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = piece(tmp_path / "1", kept(0, "a"), kept(2, "b"), dropped(4, "window"), kept(6, "c"))
    more = piece(tmp_path / "2", kept(1, "d"), part=[2, 2])
    again = piece(tmp_path / "3", kept(0, "a"), kept(2, "B"), kept(4, "x"), kept(1, "d"))
    words = [str(first), str(more), "--again", str(again)]
    found = written(synthesis_again, words, tmp_path, monkeypatch)
    sample = found["samples"]["again ops-h"]
    assert (sample["compared"], sample["kept_by_both"]) == (4, 3)
    assert sample["other_text"] == [2]
    assert sample["decided_otherwise"] == {"4": ["window: so", "passed"]}
    assert found["summary"]["ops-h"] == {"made_again": 4, "other_text": 1, "decided_otherwise": 1}
    other = piece(tmp_path / "4", kept(0, "a"), seed=1)
    with pytest.raises(SystemExit):
        written(synthesis_again, [str(first), "--again", str(other)], tmp_path, monkeypatch)
    assert "two kinds" in capsys.readouterr().err


def test_the_rate_is_read_from_the_reports_of_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"jobs": 5, "cores": 32, "device_name": "H", "looked_at": 20, "passed": 10}
    folders = []
    for card in "01":
        run = {"began": 0.0, "seconds": 100.0, "card": card, **facts}
        folders.append(tmp_path / card)
        folders[-1].mkdir()
        (folders[-1] / "report.json").write_text(json.dumps({"runs": [run]}))
    found = written(synthesis_rate, [*map(str, folders)], tmp_path, monkeypatch)
    assert found["summary"]["ops-h"] == {"tasks_a_card_hour": 360, "cores_a_card": 16.0}
    assert len(found["samples"]["rate ops-h"]["runs"]) == 2
    with pytest.raises(SystemExit):
        written(synthesis_rate, [str(tmp_path)], tmp_path, monkeypatch)
    assert "tells of a run" in capsys.readouterr().err
