"""Result files of what the trainer leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import training_results as results
from trainer.arena.figures import Game
from trainer.arena.play import BUDGETS, At, Played
from trainer.arena.tournament import Results
from trainer.rivals.registry import TODAY


def game(table: str, seed: int, slowdown: float) -> Game:
    at = {budget: At(slowdown, slowdown, 1.0, slowdown == 1.0, 2.0) for budget in BUDGETS}
    return Game(table, f"family {table}", seed, Played((0,), at, 3, 0.5))


def arena(folder: Path, **rivals: float) -> Path:
    """A contest in which each rival has one slowdown on two tables, over two seeds."""
    found = Results()
    for name, slowdown in rivals.items():
        own = [game(table, seed, slowdown) for table in "ba" for seed in (1, 0)]
        found.games[results.HELD_OUT, name] = own
    folder.mkdir()
    said = {**found.to_json([]), "policies": {"trainings": 2, "held_out": 0.2}}
    (folder / "arena.json").write_text(json.dumps(said))
    return folder


def written(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(
        "sys.argv", ["training_results", *words, "--name", "n", "--folder", str(folder)]
    )
    results.main()
    found: dict[str, Any] = json.loads((folder / "n.json").read_text())
    assert {"machine", "versions", "commit", "samples", "summary"} == set(found)
    assert all(set(sample) >= {"commit", "machine"} for sample in found["samples"].values())
    return found


def test_what_tables_hold_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, again = tmp_path / "tables.json", {"regions": 3, "rank_correlation": 0.9}
    said = {"tables": {"tables": 3, "families": {"mm": 1, "sum": 2}}, "again": again}
    file.write_text(json.dumps(said))
    found = written(["tables", str(file)], tmp_path, monkeypatch)
    assert found["samples"]["tables"]["tables"]["families"] == {"mm": 1, "sum": 2}
    assert found["summary"] == {"tables": {"tables": 3, "families": 2}, "again": again}


def test_an_arena_keeps_its_games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = arena(tmp_path / "arena", trained=1.0, **{TODAY: 1.5})
    found = written(["arena", str(folder)], tmp_path, monkeypatch)
    games = found["samples"]["arena"]["games"][results.HELD_OUT]
    assert games[TODAY] == {table: [[1.5, 1.5, 1.5, 1.5, 3]] * 2 for table in "ab"}
    rivals = found["summary"]["splits"][results.HELD_OUT]
    assert rivals["trained"]["at"]["3"]["slowdown"]["value"] == pytest.approx(1.0)
    assert found["summary"]["policies"]["trainings"] == 2


def test_contests_are_compared_by_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, less = arena(tmp_path / "0", trained=1.0), arena(tmp_path / "1", trained=1.2)
    written(["contests", f"whole={whole}"], tmp_path, monkeypatch)
    found = written(["contests", f"without rft={less}"], tmp_path, monkeypatch)["summary"]
    assert [found[label]["slowdown"]["1"]["value"] for label in ("whole", "without rft")] == [
        pytest.approx(1.0),
        pytest.approx(1.2),
    ]
    assert found["whole"]["hits"]["10"] == 1.0 and found["without rft"]["hits"]["10"] == 0.0
    with pytest.raises(results.Unreadable, match="no LABEL=FOLDER"):
        results.of_contests([str(whole)])
    with pytest.raises(results.Unreadable, match="no policy played"):
        results.of_contests([f"x={arena(tmp_path / '2', order=1.0)}"])


def run(folder: Path, rewards: list[float], collapsed: bool = False) -> Path:
    stage = folder / "agentic"
    stage.mkdir(parents=True)
    settings = {"seed": 3, "stages": ["agentic", "eval"], "agentic": {"episodes": 10}}
    (folder / "config.json").write_text(json.dumps(settings))
    steps = [{"reward": r, "judgements": 2.0, "seconds": 0.5} for r in rewards]
    (stage / "figures.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    (stage / ("collapsed.json" if collapsed else "done.json")).write_text("{}")
    return folder


def test_runs_give_their_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [run(tmp_path / "s0", [1.0, 2.0, 3.0]), run(tmp_path / "s1", [0.0], collapsed=True)]
    found = written(["runs", *map(str, folders)], tmp_path, monkeypatch)
    assert found["samples"]["s0/agentic"]["figures"]["reward"] == [1.0, 2.0, 3.0]
    assert found["summary"]["agentic"] == {
        "runs": 2,
        "collapsed": 1,
        "steps": [3, 1],
        "seconds": 2.0,
        "judgements": 80,
        "reward": [[1.0, 3.0], [0.0, 0.0]],
    }
    with pytest.raises(results.Unreadable, match=r"config\.json cannot be read"):
        results.of_runs([tmp_path / "nowhere"])


def test_an_evaluation_keeps_its_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "eval"
    folder.mkdir()
    figures = {"3": {"trained": {"tasks": 1}, "bayesian": {"tasks": 1}}, "arena": {"x": 1}}
    (folder / "figures.json").write_text(json.dumps({"figures": figures, "left": 4}))
    lines = [{"policy": p, "budget": 3, "task": "t"} for p in ("trained", "bayesian")]
    (folder / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = written(["episodes", str(tmp_path)], tmp_path, monkeypatch)
    assert found["samples"]["trained at 3"]["episodes"] == lines[:1]
    assert found["summary"] == {
        "trained at 3": {"tasks": 1},
        "bayesian at 3": {"tasks": 1},
        "left": 4,
    }


def test_episodes_that_were_played_by_other_settings_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "eval"
    folder.mkdir()
    said = {"figures": {"3": {"trained": {}, "bayesian": {}}}, "left": 0, "how": {"trained": "now"}}
    (folder / "figures.json").write_text(json.dumps(said))
    lines = [
        {"policy": policy, "budget": 3, "how": how}
        for policy, how in (
            ("trained", "now"),
            ("trained", "then"),
            ("trained", ""),
            ("bayesian", "x"),
        )
    ]
    (folder / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = results.of_episodes(tmp_path)
    assert [line["how"] for line in found["trained at 3"]["episodes"]] == ["now", ""]
    assert [line["how"] for line in found["bayesian at 3"]["episodes"]] == ["x"]
