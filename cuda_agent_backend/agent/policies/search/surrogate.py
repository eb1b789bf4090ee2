"""What untried schedules may be worth, told from those that were timed: a Gaussian process over their parameters.

A task has a few hundred schedules at most, so the process is asked about all of them, and no sampler has to find the
maximum of what improvement is expected. It is scikit-learn's (extra ``search``).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuda_agent_backend.codegen.ir.schedule import Parameter, Schedule

Array = np.ndarray[Any, np.dtype[np.float64]]

NOISE = 0.02
"""The least of one timing, as a natural logarithm: what the same schedule differs by from one profile to the next."""
FEW = 6
"""Timings below which the kernel's parameters stay as they were set."""
PER_RANK = 0.02
"""By how much (as a logarithm of seconds) a schedule is expected to be slower for each doubling of its rank."""
NEIGHBOUR = 0.08
"""By how much (as a logarithm of seconds) what won on a neighbour is expected to be faster here."""


@dataclass(frozen=True)
class Forecast:
    """For each schedule: expected logarithm of seconds, its standard deviation, and how likely it works at all."""

    mean: Array
    deviation: Array
    works: Array


def available() -> bool:
    """Whether the library is there."""
    try:
        from sklearn.gaussian_process import GaussianProcessRegressor  # noqa: F401
    except Exception:  # whatever a broken installation raises
        return False
    return True


def features(schedules: Sequence[Schedule]) -> Array:
    """Schedules as points, one row each: numbers as logarithms from 0 to 1, words and absent parameters as places."""
    rows = [
        {(k, name): value for k, kernel in enumerate(s.kernels) for name, value in kernel}
        for s in schedules
    ]
    names = sorted({key for row in rows for key in row})
    columns = [column for key in names for column in _columns([row.get(key) for row in rows])]
    varied = [c for c in columns if float(np.ptp(c)) > 0]
    return np.stack(varied, axis=1) if varied else np.zeros((len(rows), 1))


def _columns(values: Sequence[Parameter | None]) -> list[Array]:
    """The columns of one parameter."""
    words = sorted({str(v) for v in values if v is None or isinstance(v, str)})
    columns = [
        np.array([float((v is None or isinstance(v, str)) and str(v) == word) for v in values])
        for word in words
    ]
    numbers = {row: math.log2(1 + v) for row, v in enumerate(values) if isinstance(v, int)}
    low, high = min(numbers.values(), default=0.0), max(numbers.values(), default=0.0)
    if high > low:
        scaled = [(numbers.get(row, low) - low) / (high - low) for row in range(len(values))]
        columns.append(np.array(scaled))
    return columns


def forecast(
    points: Array,
    prior: Array,
    timed: Mapping[int, tuple[float, float]],
    failed: Sequence[int],
    seed: int,
) -> Forecast:
    """What is expected of every point.

    points: (schedules, features). prior: (schedules,), the logarithm of seconds expected before anything is known, up
    to a constant. timed: by row, the logarithm of seconds and its standard deviation. failed: rows that did not
    work.

    To be asked for only where the library is `available`.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern
    from threadpoolctl import threadpool_limits

    rows = np.array(sorted(timed), dtype=int)
    values = np.array([timed[row][0] for row in rows]) - prior[rows]
    noise = np.array([max(timed[row][1], NOISE) for row in rows])
    middle = float(np.median(values))
    few = len(rows) < FEW
    smooth = ConstantKernel(0.04, (0.0025, 0.5)) * Matern(1.0, (0.4, 4.0), nu=2.5)
    model = GaussianProcessRegressor(
        smooth, alpha=noise**2, optimizer=None if few else "fmin_l_bfgs_b", random_state=seed
    )
    # one thread: the matrices are tiny, and threads that wait for work would disturb what is timed next
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(points[rows], values - middle)
        mean, deviation = model.predict(points, return_std=True)
    deviation = np.maximum(deviation, 1e-6)
    return Forecast(mean + middle + prior, deviation, _works(points, rows, failed))


def _works(points: Array, worked: Array, failed: Sequence[int]) -> Array:
    """How likely each point works: what is near votes."""
    ones = _near(points, worked).sum(axis=1) + 1.0
    return np.asarray(ones / (ones + _near(points, np.array(failed, dtype=int)).sum(axis=1)))


def _near(points: Array, rows: Array) -> Array:
    """From 1 for the same point to 0 for a distant one; (points, rows)."""
    gaps = points[:, None, :] - points[rows][None, :, :]
    return np.asarray(np.exp(-8.0 * (gaps**2).sum(axis=2)))


def expected_improvement(found: Forecast, best: float) -> Array:
    """By how much of a logarithm each schedule is expected to be faster than ``best`` (a logarithm of seconds)."""
    gain = best - found.mean
    z = gain / found.deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in z])
    return np.asarray(found.works * (gain * below + found.deviation * density))


def prior_of(points: Array, ranks: Sequence[int], known: Mapping[int, float]) -> Array:
    """The prior mean: later in the order is slower, near what won on a neighbour is faster.

    known: rows of neighbours' winners, with how much their word counts (1 for the same task, towards 0).
    """
    prior = PER_RANK * np.log2(1.0 + np.asarray(ranks, dtype=float))
    if known:
        weights = np.array(list(known.values()))
        near = _near(points, np.array(list(known), dtype=int)) * weights
        prior = prior - NEIGHBOUR * near.max(axis=1)
    return np.asarray(prior)
