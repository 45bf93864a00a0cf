"""The result of a fit, as text, as data and on disk."""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from torch import Tensor

from bnrank._core import identity, store, validation
from bnrank._core.content import Fold, Part, Table, as_text
from bnrank._core.results import Printed
from bnrank.discovery.estimators.counts import Trial
from bnrank.discovery.estimators.terms import explained
from bnrank.discovery.storage import pack, unpack

T = TypeVar("T")

MAX_INPUTS = 4  # shown per coordinate
MAX_WEIGHTS = 6  # inputs shown per combination
MAX_VALUES = 8  # shown of the spectrum
PRIVATE = ("_n_features_out", "_one_dimensional")  # set by fit, without a name ending in _


@dataclass(frozen=True)
class Summary(Printed):
    """The result of a fit: a page of text when printed, with the data of the figures as attributes.

    Attributes
    ----------
    estimator, model : str
        Class, and "network", "linear" or "constant".
    n_components : int
        Number of components used.
    interval, undetermined, reason
        Of the count; see ``n_components_interval_``.
    state_dimension, state_dimension_interval, state_undetermined, state_reason
        Dimension of the set of states z = g(x), at most ``n_components``; see ``state_dimension_``.
    bound : int
        The largest count that can be detected.
    rows : int
        Number of rows.
    inputs : tuple of str
        Names of the inputs.
    input_columns : pandas.Index
        The same names as given: text, integers or the levels of a MultiIndex.
    outputs : int
        Number of outputs.
    output_names : tuple of str
        Names of the outputs, or of the classes.
    ridge : float
        lambda, in the scale of training.
    score : float
        R^2 or accuracy on the rows of the fit.
    held_out, held_out_error : ndarray
        Held-out loss with k = 0, 1, ... components and its standard error.
    stability : tuple of Trial
        All trained networks.
    spectrum : ndarray
        Standard deviations of the bottleneck representation before truncation, descending.
    influence : ndarray
        Root mean square derivative of the outputs in each coordinate (scale of training).
    sensitivity : ndarray
        (k, d_in): root mean square of dz_j/dx_i times the standard deviation of x_i.
    n_input_directions, n_input_directions_interval, input_directions_undetermined, input_directions_reason
        Number of linear combinations of the inputs that y depends on, with its uncertainty.
    input_directions, input_spectrum
        These combinations, (n, d_in), in units of the inputs, and the strength of every direction, (d_in,).
    input_weights : ndarray
        (n, d_in): the combinations times the standard deviations of the inputs.
    input_held_out, input_held_out_error : ndarray
        Held-out loss with 0, 1, ... combinations of the inputs and its standard error.
    coordinates, observed, predicted : ndarray
        For at most 1,000 rows: z (rows, k), the outputs in the table, and those of the model.
    data : tuple of str
        Type, shape and SHA-256 of the inputs and outputs of the fit.
    notes : tuple of str
        Remarks on the table and on the limits of what can be concluded.

    Examples
    --------
    >>> import numpy, bnrank
    >>> x = numpy.random.default_rng(0).normal(size=(60, 3))
    >>> summary = bnrank.discovery.BottleneckRegressor().fit(x, x[:, :2]).summary()     # a Summary
    >>> summary.model, summary.n_components, summary.interval, round(summary.score, 6)
    ('linear', 2, (2, 2), 1.0)
    """

    estimator: str
    model: str
    n_components: int
    interval: tuple[int, int]
    undetermined: bool
    reason: str
    state_dimension: int
    state_dimension_interval: tuple[int, int]
    state_undetermined: bool
    state_reason: str
    bound: int
    rows: int
    inputs: tuple[str, ...]
    input_columns: pd.Index
    outputs: int
    output_names: tuple[str, ...]
    ridge: float
    score: float
    held_out: np.ndarray
    held_out_error: np.ndarray
    stability: tuple[Trial, ...]
    spectrum: np.ndarray
    influence: np.ndarray
    sensitivity: np.ndarray
    n_input_directions: int
    n_input_directions_interval: tuple[int, int]
    input_directions_undetermined: bool
    input_directions_reason: str
    input_directions: np.ndarray
    input_weights: np.ndarray
    input_spectrum: np.ndarray
    input_held_out: np.ndarray
    input_held_out_error: np.ndarray
    coordinates: np.ndarray
    observed: np.ndarray
    predicted: np.ndarray
    data: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def gap(self) -> float:
        """s_k / s_{k+1} of the spectrum; infinite where s_{k+1} is 0, NaN without components."""
        k, s = self.n_components, self.spectrum
        if not 0 < k <= len(s):
            return float("nan")
        return float(s[k - 1] / s[k]) if k < len(s) and s[k] > 0 else float("inf")

    def to_frame(self, rows: str = "fit") -> pd.DataFrame:
        """Return the result as a DataFrame: one row for the fit, or one row for each component.

        Parameters
        ----------
        rows : {"fit", "components"}
            "fit": one row, with a column for each number, so that ``pandas.concat`` joins several fits. ``inputs`` and
            ``outputs`` are their numbers, ``low`` and ``high`` the ends of the interval, ``directions_low`` and
            ``directions_high`` those of ``n_input_directions``, ``held_out`` and ``held_out_error`` the loss at
            ``n_components``, ``held_out_of_mean`` that without components, ``notes`` one text. "components": indexed by
            component, from 1; columns ``influence`` and ``spectrum``, then the sensitivity to each input under the
            input's name, all below a first level "component" or "sensitivity".

        Raises
        ------
        ValueError
            If ``rows`` is another text.

        Examples
        --------
        >>> from bnrank.discovery import BottleneckRegressor
        >>> x = np.random.default_rng(0).normal(size=(40, 2))
        >>> summary = BottleneckRegressor().fit(x, x[:, :1] + x[:, 1:]).summary()
        >>> summary.to_frame()[["model", "n_components", "low", "high", "undetermined"]]
            model  n_components  low  high  undetermined
        0  linear             1    1     1         False
        >>> summary.to_frame("components")["sensitivity"].columns.tolist()
        ['x0', 'x1']
        """
        if validation.choice(rows, "rows", ["fit", "components"]) == "components":
            return self._component_rows()
        k, (low, high) = self.n_components, self.interval
        row = {name: value for name, value in vars(self).items() if isinstance(value, bool | int | float | str)}
        state_low, state_high = self.state_dimension_interval
        row |= {"state_low": state_low, "state_high": state_high}
        row |= {"inputs": len(self.inputs), "low": low, "high": high, "gap": self.gap, "notes": "; ".join(self.notes)}
        row |= dict(zip(("directions_low", "directions_high"), self.n_input_directions_interval, strict=True))
        losses = {"held_out": self.held_out[k], "held_out_error": self.held_out_error[k]}
        return pd.DataFrame([row | losses | {"held_out_of_mean": self.held_out[0]}])

    def _component_rows(self) -> pd.DataFrame:
        index = pd.RangeIndex(1, self.n_components + 1, name="component")
        values = np.column_stack([self.influence, self.spectrum[: self.n_components], self.sensitivity])
        levels = [name if self.input_columns.nlevels > 1 else (name,) for name in self.input_columns]
        below = ("",) * (self.input_columns.nlevels - 1)
        columns = [("component", name, *below) for name in ("influence", "spectrum")]
        columns += [("sensitivity", *name) for name in levels]
        return pd.DataFrame(values, index, pd.MultiIndex.from_tuples(columns, names=[None, *self.input_columns.names]))

    def _content(self) -> Iterator[Part]:
        yield from self._findings()
        terms = [f"  {term}: {meaning}" for term, meaning in explained(self.wording).items()]
        yield Fold("terms", ["terms", *terms], terms)

    @property
    def wording(self) -> str:
        """The text without the names of the inputs and the notes on them."""
        return as_text(replace(self, inputs=("",) * len(self.inputs), notes=())._findings())

    @property
    def scalar(self) -> bool:
        """Whether y is one output or two classes, so that the count of components says little."""
        classes = len(self.output_names) > self.outputs
        return len(self.output_names) == 1 + classes and not self.estimator.endswith("Autoencoder")

    @property
    def dependence(self) -> str:
        """The number of combinations of the inputs, in words; what was requested and predicts nothing is no finding."""
        n, reason = self.n_input_directions, self.input_directions_reason
        if not n or reason.removeprefix("undetermined: ").startswith("nothing was found"):
            return "no linear combination of the inputs was found that y depends on"
        return f"y depends on {_count(n, 'linear combination')} of the inputs"

    def _findings(self) -> Iterator[Part]:
        classes = len(self.output_names) > self.outputs
        out = f"{len(self.output_names)} classes" if classes else _count(self.outputs, "output")
        yield f"{self.estimator}: {self.rows} rows, {_count(len(self.inputs), 'input')}, {out}"
        low, high = self.n_input_directions_interval
        sure = "undetermined, " if self.input_directions_undetermined else ""
        combinations = f"{self.dependence} ({sure}interval {low} to {high})"
        if self.scalar:
            yield f"{combinations}, model: {self.model}"
            yield f"  {self.input_directions_reason}"
        else:
            low, high = self.interval
            sure = "undetermined" if self.undetermined else f"interval {low} to {high}"
            yield f"components: {self.n_components} ({sure}; at most {self.bound} detectable), model: {self.model}"
            yield f"  {self.reason}"
            low, high = self.state_dimension_interval
            sure = "undetermined" if self.state_undetermined else f"interval {low} to {high}"
            yield f"state dimension: {self.state_dimension} ({sure})"
            yield f"  {self.state_reason}"
            high = self.interval[1]
        yield f"{'accuracy' if classes else 'R^2'} on these rows: {round(self.score, 6) + 0.0:.3g}"
        if self.scalar:
            used = self.n_input_directions, high, self.input_held_out, self.input_held_out_error
            yield from _losses("combinations of the inputs", *used)
        else:
            yield combinations
            yield from _losses("components", self.n_components, high, self.held_out, self.held_out_error)
        if self.n_components and not self.scalar:
            values = ", ".join(f"{value:.3g}" for value in self.spectrum[:MAX_VALUES])
            more = " ..." if len(self.spectrum) > MAX_VALUES else ""
            yield f"spread of the directions inside the model: {values}{more}, gap {self.gap:.3g}"
            yield Table("Components", list(self._coordinates()))
        elif self.n_input_directions:
            yield Table("Combinations of the inputs", list(self._combinations()))
        if self.stability:
            yield f"networks (* within one standard error of the best{self._depth_kept()})"
            yield Table("Networks", list(self._networks()))
        yield from (f"note: {note}" for note in self.notes)

    def _coordinates(self) -> Iterator[dict[str, object]]:
        for j, (influence, row) in enumerate(zip(self.influence, self.sensitivity, strict=True), 1):
            named = ", ".join(f"{self.inputs[i]} ({row[i]:.2g})" for i in np.argsort(-row)[:MAX_INPUTS])
            yield {"component": j, "influence": f"{influence:.3g}", "most sensitive to": named}

    def _combinations(self) -> Iterator[dict[str, object]]:
        for j, (strength, row) in enumerate(zip(self.input_spectrum, self.input_weights, strict=False), 1):
            named = ", ".join(f"{self.inputs[i]} ({row[i]:+.2g})" for i in np.argsort(-np.abs(row))[:MAX_WEIGHTS])
            yield {"combination": j, "strength": f"{strength:.3g}", "inputs (weight per standard deviation)": named}

    def _networks(self) -> Iterator[dict[str, object]]:
        ordered = sorted(self.stability, key=lambda t: (t.depth, -t.ridge))
        for (mark, ridge, depth), trials in itertools.groupby(
            ordered, lambda t: ("*" if t.considered else "", t.ridge, t.depth)
        ):
            of_inputs = self.scalar and self.model == "network"
            given = [trial.directions if of_inputs else trial.count for trial in trials]
            counts = " ".join("-" if number is None else str(number) for number in given)
            yield {"": mark, "ridge": f"{ridge:.1e}", "depth": depth, "counts, one per fold or seed": counts}

    def _depth_kept(self) -> str:
        kept = [trial.depth for trial in self.stability if trial.considered]
        if self.model != "network" or not kept:
            return ""
        several = len({trial.depth for trial in self.stability if trial.fold is not None}) > 1
        return f"; depth {min(kept)} kept{', chosen by held-out rows' if several else ''}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _losses(of: str, used: int, high: int, losses: np.ndarray, errors: np.ndarray) -> Iterator[Part]:
    title = f"held-out loss by number of {of}"
    shown = min(len(losses), max(used, high) + 3)
    lines, rows = [title], []
    for k, (loss, error) in enumerate(zip(losses[:shown], errors, strict=False)):
        lines.append(f"  {k:3d}  {loss:.4g} +- {error:.2g}{' <-' if k == used else ''}")
        rows.append({"number": k, "held-out loss": f"{loss:.4g}", "+-": f"{error:.2g}", "": "<-" if k == used else ""})
    yield Fold(title, lines, [Table(title, rows)])


def is_fitted(name: str) -> bool:
    """Return whether an attribute of this name is set by ``fit``."""
    return (name.endswith("_") and not name.startswith("_")) or name in PRIVATE


def described(x: Any, y: Any) -> tuple[str, ...]:
    """Return type, shape and SHA-256 of the inputs and outputs of a table, y as numbers or as text.

    Examples
    --------
    >>> described(np.zeros((5, 2)), ["a", "b", "a", "a", "b"])[0][:22]
    'X: float64 (5, 2), SHA'
    """
    values = np.asarray(y)
    values = values.astype(np.float64 if values.dtype.kind in "biuf" else str)
    parts = identity.describe(np.asarray(x, dtype=np.float64), "X") | identity.describe(values, "y")
    return tuple(f"{name}: {text}" for name, text in parts.items())


def save(estimator: Any, path: str | os.PathLike[str], kind: str = "estimator", without: Sequence[str] = ()) -> Path:
    """Write an estimator, ``without`` some of its parameters, to one safetensors file; return the path.

    Raises
    ------
    TypeError, ValueError
        If the path is invalid, or an attribute of the estimator is not a plain value.
    """
    tensors: dict[str, Tensor] = {}
    parameters = {k: v for k, v in estimator.get_params(deep=False).items() if k not in without}
    about = {
        "class": type(estimator).__name__,
        "parameters": {k: pack(v, k, tensors) for k, v in parameters.items()},
        "fitted": {k: pack(v, k, tensors) for k, v in vars(estimator).items() if is_fitted(k)},
    }
    return store.save(path, tensors, about, kind)


def opened(stored: store.Stored, kinds: Sequence[type[T]], records: Mapping[str, Any] | None = None) -> T:
    """Return the estimator in a file; it must be of one of the given classes, with results of classes ``records``.

    Raises
    ------
    ValueError
        If the file holds an estimator of another class, or is corrupted.
    """
    known = {kind.__name__: kind for kind in kinds}
    name = stored.about.get("class")
    if name not in known:
        raise ValueError(f"path: {stored.path} holds a {name}, expected a {' or '.join(known)}")
    records = {"Trial": Trial, "Summary": Summary} if records is None else records
    try:
        parameters, fitted = (
            {key: unpack(value, stored.tensors, records) for key, value in stored.about[part].items()}
            for part in ("parameters", "fitted")
        )
        estimator = known[name](**parameters)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
        raise ValueError(f"path: {stored.path} is damaged: {error!r}") from error
    for key, value in fitted.items():
        if not is_fitted(key):
            raise ValueError(f"path: {stored.path} is damaged: {key!r} is no fitted attribute")
        setattr(estimator, key, value)
    return estimator
