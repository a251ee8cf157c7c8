"""Means with bootstrap intervals over seeds and utterances.

Seeds and utterances are drawn anew, with replacement (Efron 1979; two-way as Owen 2007, "The
pigeonhole bootstrap"): an interval of one seed speaks of the utterances alone.

N seeds, U utterances.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
LEVEL = 0.95
SEED = 0

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean and the interval that holds 95 % of the resampled means."""

    mean: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """The interval does not hold 0."""
        return self.low > 0 or self.high < 0


def mean_of(
    values: Values, resamples: int = RESAMPLES, *, weights: Values | None = None
) -> Estimate:
    """Mean of ``values [N, U]`` and its interval; NaNs are left out, of nothing else it is NaN.

    ``weights [N, U]`` say how much each value counts: of error rates a word, words make the mean
    that of all words.
    """
    values = np.asarray(values, dtype=np.float64)
    weights = np.ones_like(values) if weights is None else np.asarray(weights, dtype=np.float64)
    present = np.isfinite(values) & (np.nan_to_num(weights) > 0)
    if values.ndim != 2 or not present.any():
        return Estimate(float("nan"), float("nan"), float("nan"))
    means = _resampled(values, np.where(present, weights, 0.0), resamples)
    edge = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(means, [edge, 100 - edge])
    mean = np.average(values[present], weights=weights[present])
    return Estimate(float(mean), float(low), float(high))


def difference_of(
    values: Values,
    baseline: Values,
    resamples: int = RESAMPLES,
    *,
    weights: Values | None = None,
) -> Estimate:
    """Mean of ``values - baseline [N, U]``, paired by seed and utterance.

    Raises ValueError when the shapes differ.
    """
    if np.shape(values) != np.shape(baseline):
        raise ValueError(f"pairs need one shape, got {np.shape(values)} and {np.shape(baseline)}")
    return mean_of(np.asarray(values) - np.asarray(baseline), resamples, weights=weights)


def _resampled(values: Values, present: Values, resamples: int) -> Values:
    """Means of ``resamples`` tables whose rows and columns were drawn with replacement.

    ``present`` holds the weights, 0 where there is no value.
    """
    rng = np.random.default_rng(SEED)
    rows, columns = values.shape
    filled = np.where(present > 0, values, 0.0) * present
    weight_rows = rng.multinomial(rows, np.full(rows, 1 / rows), size=resamples)
    weight_columns = rng.multinomial(columns, np.full(columns, 1 / columns), size=resamples)
    sums = np.einsum("br,rc,bc->b", weight_rows, filled, weight_columns, optimize=True)
    counts = np.einsum("br,rc,bc->b", weight_rows, present, weight_columns, optimize=True)
    means: Values = sums[counts > 0] / counts[counts > 0]
    return means
