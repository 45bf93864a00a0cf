"""Parameters, fitting and methods shared by the three estimators."""

import copy
import numbers
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.model_selection import check_cv
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted

from bnrank._core import identity, store, validation
from bnrank.discovery.columns import columns_of, expect_columns, framed, texts
from bnrank.discovery.estimators import learning, partial, summary
from bnrank.discovery.estimators.bottleneck import coordinates_of, sensitivity
from bnrank.discovery.estimators.budget import FEW, MANY, MAX_PROCESSES, Budget, budget_for
from bnrank.discovery.estimators.counts import Count, standard_error
from bnrank.discovery.estimators.dependence import consecutive
from bnrank.discovery.estimators.directions import directions_of, nothing_found
from bnrank.discovery.estimators.jobs import processes_for
from bnrank.discovery.estimators.keeping import kept
from bnrank.discovery.estimators.notes import remarks
from bnrank.discovery.estimators.outliers import Cleaned, cleaned
from bnrank.discovery.estimators.progress import voice
from bnrank.discovery.estimators.splits import Splits
from bnrank.discovery.estimators.states import state_dimension
from bnrank.discovery.estimators.tables import (
    Data,
    Scaling,
    checked_by_scikit,
    in_memory,
    read_samples,
)
from bnrank.discovery.estimators.weights import spread, weights_of
from bnrank.networks.mlp import MLP, from_layers
from bnrank.training.sweeping.engines import engaged

CHUNK_SIZE = 8192  # rows
MAX_ROWS = 1000  # in the data of the figures
CV = "'auto', a number of folds, a splitter of scikit-learn, or pairs of indices of training and held-out rows"


class NothingFoundWarning(UserWarning):
    """No function of the inputs predicts the outputs better than their mean."""


@dataclass(eq=False, repr=False)
class BottleneckEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Parameters and methods shared by regressor, classifier and autoencoder."""

    n_components: int | str = "auto"
    _: KW_ONLY
    ridges: Sequence[float] | str = "auto"
    depth: int | str = "auto"
    width: int | str = "auto"
    n_networks: int | str = "auto"
    steps: int | str = "auto"
    rtol: float = 0.01
    random_state: int | np.random.RandomState | None = 0
    progress: bool | str = "auto"
    cv: Any = "auto"
    robust: bool = True
    n_jobs: int | None = None
    executor: Any = None
    _warns = True  # of a fit that finds nothing

    def transform(self, X: Any) -> np.ndarray:
        """Return the bottleneck coordinates, (N, n_components_), of mean 0 and covariance 1 on the rows of the fit."""
        return self._coordinates(self._inputs(X))

    def as_module(self, dtype: torch.dtype = torch.float32) -> MLP:
        """Return the fitted function as an `nn.Module`, from x to y in original units (for a classifier, to logits).

        One layer has rank at most ``n_components_``; the scaling is in the first and the last layer.
        """
        check_is_fitted(self)
        dtype = validation.dtype(dtype)
        return from_layers(self.module_.weights, self.module_.biases, self.module_.slope).to(dtype)

    def summary(self) -> summary.Summary:
        """Return the result of the fit: a page of text when printed, with the data of the figures as attributes."""
        check_is_fitted(self)
        return self.summary_

    def save(self, path: Any) -> Path:
        """Write the fitted estimator to one ``.safetensors`` file, without pickle; return the path.

        Raises
        ------
        TypeError, ValueError
            If the path has another extension, or a parameter is not a plain value.
        """
        check_is_fitted(self)
        return summary.save(self, path, without=("executor",))

    @classmethod
    def load(cls, path: Any, X: Any = None, y: Any = None) -> Self:
        """Return the estimator in a file.

        Parameters
        ----------
        path : path
            A file written by ``save``.
        X, y : array-like, optional
            A table; it must be the one that the estimator was fitted to, bit by bit.

        Raises
        ------
        ValueError
            If the file holds no estimator of this class, or one fitted to another table; the message names the first
            difference.
        """
        validation.expect(X is not None or y is None, "y", y, "none without X")
        opened = summary.opened(store.load(path, "estimator"), [cls])
        if X is not None:
            with checked_by_scikit("X, y"):
                now_given = summary.described(in_memory(X, "X"), in_memory(X if y is None else y, "y"))
            tables = (opened.summary_.data, now_given)
            stored, now = (dict(line.split(": ", 1) for line in table) for table in tables)
            other = identity.differences(stored, now)
            validation.expect(not other, "X, y", f"another table ({'; '.join(other)})", f"that of {path}")
        return opened

    def __sklearn_clone__(self) -> Self:
        """Return an estimator with the same parameters; its executor, which cannot be copied, is the same one."""
        own = {
            name: clone(value, safe=False) for name, value in self.get_params(deep=False).items() if name != "executor"
        }
        result = type(self)(**own, executor=self.executor)
        for name in ("_metadata_request", "_sklearn_output_config"):  # as scikit-learn copies them
            if hasattr(self, name):
                setattr(result, name, copy.deepcopy(getattr(self, name)))
        return result

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "summary_")

    def _begin(self, X: Any) -> np.ndarray:
        """Return the inputs, and delete an earlier fit, so that a failed fit leaves no fitted attributes."""
        for name in [name for name in vars(self) if summary.is_fitted(name)]:
            delattr(self, name)
        x = read_samples(self, X, reset=True)
        self.input_columns_ = columns_of(X, "x", x.shape[1])
        return x

    def _cleaned(
        self, x: np.ndarray, y: np.ndarray, labels: np.ndarray | None = None, weights: np.ndarray | None = None
    ) -> Cleaned:
        """Return the table without gross outliers, or as it is, and without rows of weight 0; set ``outliers_``."""
        there = np.ones(len(x), dtype=bool) if weights is None else weights > 0
        if validation.flag(self.robust, "robust"):
            found = cleaned(x[there], y[there], None if labels is None else labels[there])
            found = found if there.all() else found.within(x, y, there)
        else:
            found = Cleaned(x, y, there)
        self.outliers_ = found.rows
        return found

    def _weights(self, sample_weight: Any, rows: int) -> np.ndarray | None:
        """Return the weights of rows, of mean 1 over those above 0, or None if they are equal; set ``weighted_``."""
        with checked_by_scikit("sample_weight"):
            weights = weights_of(in_memory(sample_weight, "sample_weight"), rows)
        self.weighted_ = weights is not None
        return weights

    def _dependent(self, data: Data, groups: Any, kept: np.ndarray) -> Data:
        """Return the rows kept, with given splits, and what is held out together: groups, or blocks of dependent rows.

        A splitter receives all rows; blocks are formed of those whose weight is above 0.
        """
        if groups is not None:
            data = replace(data, units=self._units(data, groups))
        if not isinstance(self.cv, str | numbers.Integral) or isinstance(self.cv, bool):
            with checked_by_scikit("cv"):
                splitter = check_cv(self.cv, data.y, classifier=bool(data.classes))
                pairs = list(splitter.split(data.x, data.y, groups))
            return replace(data, splits=Splits.from_pairs(pairs, len(data.x))).rows(kept)
        validation.expect(not isinstance(self.cv, str) or self.cv == "auto", "cv", repr(self.cv), CV)
        if data.weights is not None:
            there = data.weights > 0
            data, kept = data.rows(there), kept[there]
        once = np.sort(np.unique(data.inputs, return_index=True)[1])  # repeats resemble each other in any case
        if groups is None and consecutive(data.x[once], data.numbers[once]) is not None:
            found = consecutive(data.x, data.numbers)
            data = data if found is None else replace(data, units=found.blocks, gap=found.gap)
        return data.rows(kept)

    @staticmethod
    def _units(data: Data, groups: Any) -> np.ndarray:
        """Return the number of the group of every row."""
        with checked_by_scikit("groups"):
            values = np.asarray(in_memory(groups, "groups"))
            validation.expect(values.shape == (len(data.x),), "groups", f"shape {values.shape}", f"({len(data.x)},)")
            missing = int(pd.isna(values).sum())
            validation.expect(not missing, "groups", f"missing values ({missing} of {len(values)})", "one for each row")
            units = pd.factorize(values)[0]
        validation.expect(units.max() > 0, "groups", "1 group", "at least 2")
        return units

    def _plan(self, data: Data, seed: int, tell: Callable[[str], None], wanted: int = 0) -> Budget:
        """Return the settings of a fit: the given ones, and defaults for the table otherwise."""
        validation.expect(np.ptp(data.x, axis=0).any(), "X", "1 row(s) that differ", "at least 2")
        plan = budget_for(data.distinct, data.x.shape[1], data.outputs, data.bound)
        changes: dict[str, Any] = {"rtol": validation.number(self.rtol, "rtol", 0.0), "seed": seed, "tell": tell}
        processes = processes_for(self.n_jobs) if self.executor is None else MAX_PROCESSES
        changes["processes"] = min(processes, MAX_PROCESSES) if data.distinct >= MANY else 1
        if isinstance(self.cv, numbers.Integral) and not isinstance(self.cv, bool):
            changes["folds"] = validation.integer(self.cv, "cv", 2)
        for name, minimum in [("depth", 2), ("width", 1), ("n_networks", 1), ("steps", 1)]:
            value = getattr(self, name)
            expected = f"an integer of at least {minimum}, or 'auto'"
            validation.expect(not isinstance(value, str) or value == "auto", name, repr(value), expected)
            if not isinstance(value, str):
                changes[name] = validation.integer(value, name, minimum)
        if "depth" in changes:
            changes["shallow"] = 0
        changes.setdefault("width", max(plan.width, wanted))
        width = changes["width"]
        validation.expect(width >= wanted, "width", f"{width}", f"at least {wanted}, the number of components")
        if not isinstance(self.ridges, str):
            given = enumerate(validation.sequence(self.ridges, "ridges", "numbers, or 'auto'"))
            values = [validation.number(r, f"ridges[{i}]", 0.0, strict=True) for i, r in given]
            validation.expect(values, "ridges", "none", "at least one, or 'auto'")
            changes |= {"ridges": tuple(dict.fromkeys(values)), "grow": False}
            changes["steps"] = changes.get("steps", max(plan.steps, 2 * data.distinct if data.distinct < FEW else 0))
        else:
            validation.expect(self.ridges == "auto", "ridges", repr(self.ridges), "numbers, or 'auto'")
        plan = replace(plan, **changes)
        sizes = {"depth": plan.depth, "width": plan.width, "n_networks": plan.n_networks}
        validation.networks_fit(data.x.shape[1], data.x.shape[1], sizes)
        return plan

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer) and not isinstance(self.random_state, bool):
            return validation.integer(self.random_state, "random_state", 0)
        try:
            return int(check_random_state(self.random_state).randint(2**31 - 10_000))
        except ValueError:
            expected = "an integer of at least 0, a numpy.random.RandomState, or None"
            raise ValueError(
                f"random_state: got {validation.describe(self.random_state)}, expected {expected}"
            ) from None

    def _keeping(self, out: Any) -> AbstractContextManager[None]:
        """Return a context in which trainings are kept in a folder; a fit of other seeds would find none of them."""
        known = isinstance(self.random_state, int | np.integer)
        expected = "an integer where trained networks are kept (out): only the same seed finds them again"
        validation.expect(out is None or known, "random_state", validation.describe(self.random_state), expected)
        return kept(out)

    def _wanted(self, d_in: int, d_out: int, outputs: str) -> int | None:
        """Return n_components as a number, or None for "auto", or raise ValueError."""
        if isinstance(self.n_components, str):
            validation.choice(self.n_components, "n_components", ["auto"])
            return None
        wanted = validation.integer(self.n_components, "n_components")
        validation.expect(wanted <= d_in, "n_components", f"{wanted}", f"at most {d_in}, the number of inputs")
        expected = (
            f"at most {d_out}: y passes through itself, so that no function with {outputs} needs more components. For "
            "the number of combinations of the inputs that y depends on, fit with n_components='auto' and read "
            "n_input_directions_"
        )
        validation.expect(wanted <= d_out, "n_components", f"{wanted}", expected)
        return wanted

    def _learn(self, x: np.ndarray, scaling: Scaling, data: Data, wanted: int | None, known: Any = None) -> None:
        """Fit, and set all fitted attributes; ``known`` is a count determined elsewhere."""
        with voice(self.progress) as tell, engaged(self.executor):
            groups = 2 if data.units is None else len(np.unique(data.units))
            left = f"1 group in the {len(data.x)} rows of weight above 0 that are no outliers"
            validation.expect(groups > 1, "groups", left, "at least 2 (robust=False keeps outliers)")
            plan = self._plan(data, self._seed(), tell, wanted or 0)
            tell.expect(plan.work)
            data = replace(data, max_components=max(data.max_components, wanted or 0))
            evidence = learning.investigate(data, plan, wanted)
            model = partial.learned(data, evidence)
            count = learning.few_rows(learning.count_from(evidence, data.bound), data)
            self.partial_ = evidence.path is not None and evidence.path.partial
            if wanted is None:
                try:
                    count = count if self.partial_ else learning.between_inputs(count, data, plan)
                except KeyboardInterrupt:
                    self.partial_ = True
                count = learning.by_order(count, data)
        if wanted is not None and known is None:
            known = Count(wanted, (wanted, wanted), float("nan"), False, f"{wanted} component(s) were requested")
            if wanted and nothing_found(evidence):
                reason = "undetermined: nothing was found: on held-out rows the component(s) requested"
                reason = f"{reason} ({wanted}) predict no better than the mean"
                known = replace(known, interval=(0, wanted), undetermined=True, reason=reason)
        count, k = known or count, evidence.number
        count = partial.doubted(count) if self.partial_ else count
        self.model_ = evidence.kind
        self.n_components_ = self._n_features_out = k
        self.n_components_interval_ = count.interval
        self.undetermined_ = count.undetermined
        self.reason_ = count.reason
        self.network_ = model.network
        self.bottleneck_layer_ = model.layer
        self.ridge_ = model.ridge
        self.module_ = scaling.unscaled_output(scaling.unscaled_input(model.network))
        self.input_scale_, self.output_scale_ = scaling.x_factor, scaling.y_factor
        inputs = torch.from_numpy(data.x)
        made = coordinates_of(model.network, inputs, model.layer, k, data.weights) if k else None
        state = state_dimension(made.encoder if made else None, data, count, evidence)
        self.state_dimension_, self.state_dimension_interval_ = state.number, state.interval
        self.state_reason_, self.state_undetermined_ = state.reason, state.undetermined
        if made is not None:
            self.encoder_ = scaling.unscaled_input(made.encoder)
            self.decoder_ = scaling.unscaled_output(made.decoder)
            self.influence_ = made.influence
            spreads = torch.from_numpy(spread(data.x, data.weights))
            self.sensitivity_ = sensitivity(made.encoder, inputs, spreads, data.weights)
            self.spectrum_ = coordinates_of(model.whole, inputs, model.layer, 1, data.weights).spectrum
        else:
            self.influence_, self.spectrum_ = np.zeros(0), np.zeros(0)
            self.sensitivity_ = np.zeros((0, data.x.shape[1]))
        self.held_out_ = evidence.errors.mean(axis=1)
        self.held_out_error_ = np.array([standard_error(rows) for rows in evidence.errors])
        found = directions_of(evidence, model, data, count)
        self.n_input_directions_ = found.count.number
        self.n_input_directions_interval_ = found.count.interval
        self.input_directions_undetermined_ = found.count.undetermined
        self.input_directions_reason_ = found.count.reason
        self.input_directions_ = found.vectors * scaling.x_factor
        self.input_spectrum_ = found.spectrum
        self.input_held_out_, self.input_held_out_error_ = found.held_out, found.held_out_error
        self.stability_ = found.trials
        self.notes_ = tuple(remarks(self, x, data))
        if nothing_found(evidence) and self._warns:
            warnings.warn(f"{type(self).__name__}: {count.reason}", NothingFoundWarning, stacklevel=3)

    def _inputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        x = read_samples(self, X, reset=False)
        expect_columns(X, "X", self.input_columns_)
        return x

    def _framed(self, values: np.ndarray, rows: Any) -> Any:
        """Return values of y as a DataFrame with its names where ``set_output`` asks for one."""
        kind = getattr(self, "_sklearn_output_config", {}).get("transform", "default")
        return framed(values, self.output_columns_, rows, kind)

    def _outputs(self, X: Any) -> np.ndarray:
        return self._outputs_of(self._inputs(X))

    def _outputs_of(self, x: np.ndarray) -> np.ndarray:
        return _in_chunks(self.module_, x)

    def _decode(self, Z: Any) -> np.ndarray:
        check_is_fitted(self)
        with checked_by_scikit("Z"):
            z = check_array(in_memory(Z, "Z"), dtype=np.float64, input_name="Z", ensure_min_features=0)
        columns, expected = z.shape[1], f"n_components_ = {self.n_components_}"
        validation.expect(columns == self.n_components_, "Z", f"{columns} columns", expected)
        if not self.n_components_:
            return np.repeat(self._outputs_of(np.zeros((1, self.n_features_in_))), len(z), axis=0)
        return _in_chunks(self.decoder_, z)

    def _summarize(
        self,
        x: np.ndarray,
        observed: np.ndarray,
        predicted: np.ndarray,
        score: float,
        outputs: list[str],
        weights: np.ndarray | None = None,
    ) -> None:
        there = np.arange(len(x)) if weights is None else np.flatnonzero(weights)
        if absent := len(x) - len(there):
            self.notes_ += (f"{absent} of {len(x)} rows have weight 0, and are not used",)
        rows = there[np.linspace(0, len(there) - 1, min(len(there), MAX_ROWS)).astype(int)]
        own = {
            "estimator": type(self).__name__,
            "interval": self.n_components_interval_,
            "bound": len(self.held_out_) - 1,
            "rows": len(there),
            "inputs": tuple(texts(self.input_columns_, "x")),
            "input_weights": self.input_directions_ * spread(x, weights),
            "outputs": observed.shape[1] if observed.ndim > 1 else 1,
            "output_names": tuple(outputs),
            "score": score,
            "coordinates": self._coordinates(x[rows]),
            "observed": observed[rows],
            "predicted": predicted[rows],
            "data": summary.described(x, observed),
        }
        fitted = {f.name: getattr(self, f"{f.name}_") for f in fields(summary.Summary) if f.name not in own}
        self.summary_ = summary.Summary(**own, **fitted)
        if self.partial_:
            raise KeyboardInterrupt(f"{type(self).__name__}: {partial.WHY}; see summary()")

    def _coordinates(self, x: np.ndarray) -> np.ndarray:
        return _in_chunks(self.encoder_, x) if self.n_components_ else np.zeros((len(x), 0))


def _in_chunks(net: MLP, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return np.concatenate(
            [
                net(torch.tensor(np.ascontiguousarray(x[i : i + CHUNK_SIZE]))).numpy()
                for i in range(0, len(x), CHUNK_SIZE)
            ]
        )
