"""The estimator of what the columns of a table have in common."""

from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.metrics import r2_score

from bnrank.discovery.columns import texts
from bnrank.discovery.estimators import learning
from bnrank.discovery.estimators.base import BottleneckEstimator
from bnrank.discovery.estimators.counts import Count
from bnrank.discovery.estimators.progress import voice
from bnrank.discovery.estimators.tables import Data, constant_columns, scaling_of


class BottleneckAutoencoder(BottleneckEstimator):
    """Reconstruction x = h(g(x)) through as few components g(x) in R^k as the columns share.

    Held-out rows cannot determine the number: the identity reconstructs them, noise included, without error. Held-out
    columns can. The columns are split into two random halves, and each half is predicted from the other as by
    :class:`BottleneckRegressor`; noise of one column cannot be predicted from others. The count is the larger of the
    two. It is at most half the number of columns (and undetermined there), and misses what a single column shows. Then
    a network is trained to reconstruct all columns through that many components. At rank recovery it projects onto the
    manifold of the data, and so removes noise (T17).

    Parameters
    ----------
    n_components, ridges, depth, width, n_networks, steps, rtol, random_state, progress, cv, robust, n_jobs, executor
        As in :class:`BottleneckRegressor`; a given number of components makes the split unnecessary.

    Attributes
    ----------
    n_components_, n_components_interval_, undetermined_, reason_, stability_, model_
        As in :class:`BottleneckRegressor`, of the prediction of one half of the columns from the other.
    held_out_, held_out_error_ : ndarray
        Held-out loss of the reconstruction with k = 0, 1, ... components, and its standard error.
    state_dimension_, state_dimension_interval_, state_undetermined_, state_reason_, encoder_, decoder_, network_
    module_, spectrum_, sensitivity_, influence_, outliers_, notes_
        As in :class:`BottleneckRegressor`, of the reconstruction.
    input_columns_, output_columns_
        As in :class:`BottleneckRegressor`; both are the columns of X.

    Raises
    ------
    TypeError, ValueError
        If a parameter is out of range, or the table has missing, infinite or categorical entries (named).

    Examples
    --------
    >>> import numpy as np
    >>> z = np.random.default_rng(0).normal(size=(200, 1))
    >>> x = z @ np.array([[1.0, 2.0, -1.0, 0.5]])
    >>> fitted = BottleneckAutoencoder().fit(x)
    >>> fitted.n_components_, bool(np.allclose(fitted.inverse_transform(fitted.transform(x)), x, atol=1e-3))
    (1, True)
    """

    def fit(self, X: Any, y: Any = None, groups: Any = None, *, out: Any = None) -> Self:
        """Fit to rows (N, d); ``y`` is not used, ``groups`` and ``out`` as in :class:`BottleneckRegressor`."""
        x = self._begin(X)
        wanted = self._wanted(x.shape[1], x.shape[1], f"{x.shape[1]} columns")
        clean = self._cleaned(x, np.zeros((len(x), 0)))
        rows, used = clean.kept, clean.x[clean.kept]
        scale, self.output_columns_ = scaling_of(used, used, "each"), self.input_columns_
        data, count = self._dependent(Data(scale.x(clean.x), scale.y(clean.x)), groups, rows), None
        with self._keeping(out):
            if wanted is None:
                count = learning.few_rows(self._in_common(data, np.flatnonzero(~constant_columns(used))), data)
                wanted = count.number
            self._learn(used, scale, data, wanted, count)
        self.notes_ += clean.notes
        rebuilt = self._outputs_of(x)
        self._summarize(x, x, rebuilt, _kept(used, rebuilt[rows]), texts(self.input_columns_, "x"))
        return self

    def inverse_transform(self, Z: Any) -> Any:
        """Return the rows h(z) of coordinates z, (N, n_components_); a DataFrame under ``set_output``."""
        return self._framed(self._decode(Z), Z)

    def predict(self, X: Any) -> Any:
        """Return the reconstructions h(g(x)), (N, d); a DataFrame under ``set_output``."""
        return self._framed(self._outputs(X), X)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the fraction of the variance that the reconstruction keeps (R^2, columns weighted by variance)."""
        x = self._inputs(X)
        return _kept(x, self._outputs_of(x))

    def _in_common(self, data: Data, columns: np.ndarray) -> Count:
        """Return the number of components that the halves of the columns share."""
        if len(columns) < 2:
            number = len(columns)
            reason = "one column varies" if number else "nothing was found: no column varies"
            return Count(number, (number, number), float("nan"), False, reason)
        seed = self._seed()
        mixed = np.random.default_rng(seed).permutation(columns)
        half = len(mixed) // 2
        counts = []
        with voice(self.progress) as tell:
            for known, other in ((mixed[:half], mixed[half:]), (mixed[half:], mixed[:half])):
                part = replace(data, x=data.x[:, known], y=data.y[:, other])
                plan = self._plan(part, seed, lambda text: tell(f"half of the columns: {text}"))
                tell.expect(plan.work)
                evidence = learning.investigate(part, plan)
                if evidence.path is not None and evidence.path.partial:
                    raise KeyboardInterrupt  # the number is not known without both halves
                count = learning.count_from(evidence, part.bound)
                counts.append(learning.by_order(learning.between_inputs(count, part, plan), part))
        largest = max(counts, key=lambda count: count.number)
        low, high = min(c.interval[0] for c in counts), max(c.interval[1] for c in counts)
        if largest.number == 0:
            reason = "nothing was found: no column can be predicted from others better than by its mean"
            return Count(0, (0, high), float("nan"), False, reason)
        if largest.number >= half:
            reason = f"undetermined: each half has {half} column(s), so that no more than {half} can be detected"
            return Count(largest.number, (low, high), largest.agreement, True, reason)
        reason = f"one half of the columns from the other: {largest.reason}"
        return replace(largest, interval=(low, high), reason=reason)


def _kept(x: np.ndarray, rebuilt: np.ndarray) -> float:
    return float(r2_score(x, rebuilt, multioutput="variance_weighted"))
