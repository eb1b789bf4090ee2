"""A supervised ranker: gradient-boosted trees that order a task's schedules by LambdaRank (Burges, 2010), LightGBM's.

The same trees, fitted to the logarithm of how much slower than its task's best a schedule is, are what the Gaussian
process may begin with (`RankedSearch`). Models are kept in the library's own text form.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cuda_agent_backend.agent.policies.search.tuner import Tuner
from trainer.rivals.features import Array, Vocabulary, vocabulary_of
from trainer.rivals.gaussian import PATIENT, driven
from trainer.rivals.protocol import Play, View, then_rest, view_of
from trainer.world.rows import Table

GRADES = 31
"""Grades of relevance beside none, as the library's gains go."""
STEEP = 3.0
"""The grade grows with this power of the share of the best: what is half as fast is worth little."""
SLOWEST = math.log(10.0)
"""A schedule that does not work, or is slower than this, counts as so much slower than the best (a logarithm)."""
ROUNDS = 300
SETTINGS: dict[str, Any] = {
    "learning_rate": 0.05,
    "num_leaves": 31,
    "min_data_in_leaf": 10,
    "feature_fraction": 0.7,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "verbosity": -1,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
}


def shares(table: Table) -> np.ndarray[Any, np.dtype[np.float64]]:
    """By row the speed as a share of the best, 0 where it does not work; (rows,)."""
    best = table.best or 1.0
    return np.array([(row.speed or 0.0) / best for row in table.rows])


def slower(share: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Logarithms of the time over the best's, at most `SLOWEST`."""
    return np.asarray(np.minimum(-np.log(np.maximum(share, 1e-9)), SLOWEST))


class Data:
    """Training rows of several tables. x: (rows, columns); share: (rows,); groups: rows of each table."""

    def __init__(self, tables: Sequence[Table], shuffle: int | None = None) -> None:
        """shuffle: a seed by which what judging said is dealt among each table's rows anew, for a control."""
        known = [table for table in tables if table.best > 0]
        views = [view_of(table) for table in known]
        self.vocabulary = vocabulary_of(views)
        width = self.vocabulary.width
        rows = [self.vocabulary.rows(view) for view in views]
        self.x: Array = np.concatenate(rows) if rows else np.zeros((0, width), dtype=np.float32)
        dealt = np.random.default_rng(shuffle)
        every = [shares(table) for table in known]
        if shuffle is not None:
            every = [dealt.permutation(own) for own in every]
        self.share = np.concatenate(every) if every else np.zeros(0)
        self.groups = [len(table.rows) for table in known]


class Trees:
    """Boosted trees on a vocabulary. None is fitted where there is nothing to learn from."""

    def __init__(self, objective: str, seed: int) -> None:
        self.objective, self.seed = objective, seed
        self.booster: Any = None
        self.vocabulary: Vocabulary | None = None

    def fit(self, data: Data) -> None:
        """Fit to the data; nothing is fitted to less than two tables."""
        import lightgbm

        self.vocabulary = data.vocabulary
        if len(data.groups) < 2:
            return
        ranks = self.objective == "lambdarank"
        label = np.floor(GRADES * data.share**STEEP) if ranks else slower(data.share)
        more = {"label_gain": list(range(GRADES + 1)), "lambdarank_truncation_level": 10}
        settings = {**SETTINGS, "objective": self.objective, "seed": self.seed}
        settings |= more if ranks else {}
        set_ = lightgbm.Dataset(data.x, label, group=data.groups if ranks else None)
        self.booster = lightgbm.train(settings, set_, num_boost_round=ROUNDS)

    def to_json(self) -> dict[str, Any]:
        """As JSON values: the columns, and the trees as text; no trees where none were fitted."""
        return {
            "objective": self.objective,
            "seed": self.seed,
            "vocabulary": asdict(self.vocabulary) if self.vocabulary else None,
            "trees": self.booster.model_to_string() if self.booster else "",
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Trees:
        """From `to_json`. Raises KeyError, TypeError, or the library's error, on anything else."""
        import lightgbm

        made = Trees(value["objective"], value["seed"])
        made.vocabulary = Vocabulary.from_json(value["vocabulary"]) if value["vocabulary"] else None
        made.booster = lightgbm.Booster(model_str=value["trees"]) if value["trees"] else None
        return made

    def predict(self, view: View) -> np.ndarray[Any, np.dtype[np.float64]] | None:
        """By row; None where nothing was fitted."""
        if self.booster is None or self.vocabulary is None:
            return None
        return np.asarray(self.booster.predict(self.vocabulary.rows(view), num_threads=1))


class Ranker:
    """Rows by what the trees think of them. shuffled: a control whose labels were dealt anew, which is to be chance."""

    def __init__(self, shuffled: bool = False) -> None:
        self.name = "ranker-shuffled" if shuffled else "ranker"
        self.shuffled = shuffled
        self.trees = Trees("lambdarank", 0)

    def fit(self, tables: Sequence[Table], seed: int) -> None:
        """Train."""
        self.trees = Trees("lambdarank", seed)
        self.trees.fit(Data(tables, seed if self.shuffled else None))

    def play(self, view: View, seed: int) -> Play:
        """See `Rival`. A control knows nothing of the space's order either."""
        found = self.trees.predict(view)
        if found is None:
            return then_rest((), view)
        rows = list(view.order)
        if self.shuffled:
            random.Random(f"{seed} {view.names}").shuffle(rows)
        return then_rest(sorted(rows, key=lambda row: -found[row]), view)


class RankedSearch:
    """The Gaussian process, which begins with what the trees expect of each schedule."""

    name = "ranker-search"
    first = 1
    """Rows that are judged before the process is asked: the best guess."""

    def __init__(self) -> None:
        self.trees = Trees("regression", 0)

    def fit(self, tables: Sequence[Table], seed: int) -> None:
        """Train."""
        self.trees = Trees("regression", seed)
        self.trees.fit(Data(tables))

    def play(self, view: View, seed: int) -> Play:
        """See `Rival`."""
        found = self.trees.predict(view)
        expected = np.zeros(len(view.names)) if found is None else found
        order = sorted(view.order, key=lambda row: expected[row])
        tuner = Tuner(
            [view.schedules[row] for row in order],
            {},
            self.first,
            True,
            seed,
            PATIENT,
            expected=[float(expected[row]) for row in order],
        )
        return driven(tuner, view)
