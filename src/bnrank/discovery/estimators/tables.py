"""Tables: validation, groups of repeated rows, and scaling for training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.sparse import issparse
from sklearn.utils.validation import validate_data
from torch import Tensor

from bnrank._core import validation
from bnrank.discovery.columns import text_of
from bnrank.discovery.estimators.splits import Splits
from bnrank.discovery.estimators.weights import spread, uneven
from bnrank.networks.mlp import MLP, from_layers
from bnrank.tasks import Task

MAX_COMPONENTS = 25
MAX_SHOWN = 5  # columns named in an error
HUGE, TINY = 1e150, 1e-150  # the squares of larger and smaller numbers overflow and underflow
FEW_VALUES = 0.5  # fraction of rows whose output also occurs at other inputs, above which outputs agree by chance
COINCIDE = 0.5  # share of the repeated rows that independent columns must repeat, for repeats to be coincidences, and
# of the distinct rows that a column may have values
DISAGREE = 0.1  # fraction of the repeated inputs with several outputs, above which a table has replicates
CHANCE = 0.01  # below this probability of a chance common divisor, a table counts as several copies of itself
X_NORM, Y_NORM = 3.0, 2.0  # root mean squares of ||x|| and ||y||, those of the theory's experiments
UNLIKE = 10.0  # ratio of standard deviations above which outputs are assumed to have different units
REFUSED = {
    "text": "text or categories{}, expected numbers; encode them first, e.g. with sklearn.preprocessing.OneHotEncoder",
    "dates": "dates or times{}, expected numbers, e.g. differences in days",
    "missing": "missing values (NaN){}, expected none; impute them with sklearn.impute, or drop the rows",
    "infinite": "values that are infinite (infinity or beyond 1e150){}, expected finite ones",
}


def read_samples(estimator: Any, x: Any, *, reset: bool) -> np.ndarray:
    """Return inputs as a float64 array of shape (N, d_in), checked as scikit-learn does.

    Parameters
    ----------
    estimator : BaseEstimator
        Its names and number of columns are compared, or set where ``reset``.
    x : array-like or DataFrame
        The inputs.
    reset : bool
        Whether these are the inputs of a fit, which needs at least two rows.

    Raises
    ------
    TypeError, ValueError
        If entries are missing, infinite or categorical (the columns are named), or the shape does not fit.
    """
    x = in_memory(x, "X")
    with checked_by_scikit("X"):
        refuse_tables_by_name(x, "X")
        if isinstance(x, pd.DataFrame) and len({isinstance(name, str) for name in x.columns}) > 1:
            x = x.set_axis(range(x.shape[1]), axis=1)  # scikit-learn refuses names that are text only in part
        return validate_data(estimator, x, reset=reset, dtype=np.float64, ensure_min_samples=2 if reset else 1)


def in_memory(value: Any, name: str) -> Any:
    """Return a tensor as an array, and anything else unchanged."""
    if not isinstance(value, Tensor):
        return value
    plain = validation.dense(value, name).detach().cpu()
    return (plain.double() if plain.is_floating_point() else plain).numpy()


@contextlib.contextmanager
def checked_by_scikit(name: str) -> Iterator[None]:
    """Raise errors of scikit-learn's checks again, with the argument's name before the message."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError, OverflowError, AttributeError) as error:
        message = str(error)
        if isinstance(error, TypeError | ValueError) and message.startswith((f"{name}:", "X has")):
            raise
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"{name}: {message}") from error


def refuse_tables_by_name(table: Any, argument: str) -> None:
    """Raise ValueError, naming the columns, for text, dates, missing, infinite or huge entries.

    Huge entries are those beyond 1e150, whose squares overflow.

    Examples
    --------
    >>> refuse_tables_by_name(np.array([[1.0, np.nan], [2.0, 3.0]]), "X")
    Traceback (most recent call last):
    ValueError: X: got missing values (NaN) in column 1 (1 of 2 rows), expected none; impute them ...
    """
    if issparse(table):  # refused by scikit-learn
        return
    try:
        frame = pd.DataFrame(table)
    except (TypeError, ValueError):  # ragged or three-dimensional: refused by scikit-learn
        return
    in_column = np.ndim(table) != 1
    found: dict[str, list[str]] = {kind: [] for kind in REFUSED}
    for label, column in frame.items():
        name, kind, entries = text_of(label) if in_column else "", column.dtype, np.zeros(0)
        in_words = kind.kind == "O" and any(isinstance(entry, str | bytes) for entry in column)
        if in_words or isinstance(kind, pd.CategoricalDtype | pd.StringDtype):
            found["text"].append(name)
        elif kind.kind in "mM" or isinstance(kind, pd.PeriodDtype):
            found["dates"].append(name)
        elif kind.kind != "c":
            with contextlib.suppress(TypeError, ValueError):  # what is no number is refused by scikit-learn
                entries = column.to_numpy(dtype=np.float64, na_value=np.nan)
        for fault, bad in (("missing", np.isnan(entries)), ("infinite", np.abs(entries) > HUGE)):
            if bad.any():
                found[fault].append(f"{name} ({bad.sum()} of {len(entries)} rows)".strip())
    for kind, message in REFUSED.items():
        if names := found[kind]:
            more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
            where = f"{' in column' if in_column else ''} {', '.join(names[:MAX_SHOWN])}{more}".rstrip()
            raise ValueError(f"{argument}: got {message.format(where)}")


def constant_columns(table: np.ndarray) -> np.ndarray:
    """Return which columns vary by no more than rounding, shape (d,), bool.

    Examples
    --------
    >>> constant_columns(np.array([[1.0, 0.1], [2.0, 0.1]])).tolist()
    [False, True]
    """
    return np.ptp(table, axis=0) <= np.maximum(10 * np.finfo(np.float64).eps * np.abs(table).max(axis=0), TINY)


def groups_of_rows(x: np.ndarray, y: np.ndarray, *, labels: bool = False) -> np.ndarray:
    """Return the group of every row, (N,), counted from 0; copies of a row share a group.

    Copies are rows with equal inputs and outputs. They must not be on both sides of a cross-validation, where they
    would be predicted from themselves, and they are no additional evidence. Rows with equal inputs and different
    outputs are replicates, as in a factorial design: their noise is independent, so that one may be held out while
    others at the same inputs are in the training set. The held-out loss then measures how well y is predicted at the
    inputs of the design, not between them.

    Where outputs take few values (classes, grades), replicates agree by chance and resemble copies. If most rows have
    an output that also occurs at other inputs, or with ``labels``, every row is a group by itself, provided that at
    least one in ten of the repeated inputs has several outputs; copies of single rows of such a table cannot be
    distinguished from replicates. Copies of the whole table can: if every row occurs m, 2 m, 3 m, ... times, m of them
    form a group. (Such multiplicities occur by chance with probability m^-(pairs - inputs), where the number of rows at
    each input is fixed, as in a balanced design; it must be below 1 percent.)

    Where all columns take few values (yes and no, grades), rows coincide by chance. If no column has more values than
    half the number of distinct rows, and columns drawn independently with the frequencies of the table repeat at least
    half as many rows, every row is a group by itself (or m copies are, if every row occurs m, 2 m, 3 m, ... times,
    which has probability m^-pairs).

    Parameters
    ----------
    x, y : ndarray
        (N, d_in); (N, d_out), or class indices (N,).
    labels : bool
        Whether the outputs are classes.

    Examples
    --------
    >>> x = np.array([[1.0], [0.0], [1.0], [1.0]])
    >>> groups_of_rows(x, np.array([[2.0], [5.0], [2.0], [3.0]])).tolist()
    [1, 0, 1, 2]
    >>> groups_of_rows(x, np.array([1, 0, 1, 0]), labels=True).tolist()
    [0, 1, 2, 3]
    """
    inputs, rows = _numbered(x)
    if len(rows) == len(x):
        return inputs
    outputs, _ = _numbered(y.reshape(len(y), -1))
    groups, size = _numbered(np.stack([inputs, outputs], axis=1))
    first = np.unique(groups, return_index=True)[1]
    several = np.bincount(inputs[first], minlength=len(rows)) > 1
    elsewhere = np.bincount(outputs[first])[outputs[first]] > 1
    few_values = labels or size[elsewhere].sum() > FEW_VALUES * len(x)
    coincide = _coincide(np.column_stack([x, outputs]), size)
    copies = int(np.gcd.reduce(size))
    if copies ** float((0 if coincide else len(rows)) - len(size)) > CHANCE:
        copies = 1
    if not coincide and (not few_values or several.sum() < DISAGREE * (rows > copies).sum()):
        return groups
    if copies == 1:
        return np.arange(len(x))
    sets = np.empty(len(groups), dtype=int)
    sets[np.argsort(groups, kind="stable")] = np.arange(len(groups)) // copies
    return sets


def _coincide(table: np.ndarray, size: np.ndarray) -> bool:
    """Return whether columns take few values, and rows of independent ones repeat at least half as often as these."""
    levels = [_numbered(column[:, None])[1] for column in table.T]
    agree = np.prod([np.square(counts / len(table)).sum() for counts in levels])
    expected = 1 - (1 - agree) ** (len(table) - 1)  # probability that another row is equal
    few = max(len(counts) for counts in levels) <= COINCIDE * len(size)
    return few and bool(expected >= COINCIDE * size[size > 1].sum() / len(table))


def _numbered(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of every row among the distinct rows (sorted ascending), and the multiplicities of those."""
    _, numbers, counts = np.unique(table, axis=0, return_inverse=True, return_counts=True)
    return numbers.reshape(-1), counts


@dataclass(frozen=True)
class Data:
    """A table in the scale of training.

    Attributes
    ----------
    x : ndarray
        (N, d_in).
    y : ndarray
        (N, d_out), or class indices (N,).
    classes : int
        Number of classes; 0 for the squared error.
    max_components : int
        Largest number of components considered.
    units : ndarray or None
        What rows are held out together, by number, (N,): given groups, or blocks of consecutive rows. None where only
        copies of a row are.
    gap : int
        Number of rows next to a held-out one that are not used for training, for blocks.
    splits : Splits or None
        Given splits of a cross-validation.
    weights : ndarray or None
        Weights of the rows, (N,), of which only ratios matter; None where all rows count alike.
    """

    x: np.ndarray
    y: np.ndarray
    classes: int = 0
    max_components: int = MAX_COMPONENTS
    units: np.ndarray | None = None
    gap: int = 0
    splits: Splits | None = None
    weights: np.ndarray | None = None

    @property
    def outputs(self) -> int:
        """d_out."""
        return self.classes or self.y.shape[1]

    @property
    def bound(self) -> int:
        """The largest count that can be detected."""
        return min(self.full, self.max_components)

    @property
    def full(self) -> int:
        """The largest rank of a linear map; for C logits, C - 1, since only differences matter."""
        return min(self.x.shape[1], self.classes - 1 if self.classes else self.y.shape[1])

    @cached_property
    def groups(self) -> np.ndarray:
        """Return the group of copies of every row, (N,)."""
        return groups_of_rows(self.x, self.y, labels=bool(self.classes))

    @cached_property
    def inputs(self) -> np.ndarray:
        """Return the index of every row's inputs among the distinct inputs, (N,)."""
        return _numbered(self.x)[0]

    @property
    def numbers(self) -> np.ndarray:
        """The outputs as numbers, (N, d_out): for classes, 1 in the column of the class."""
        return np.eye(self.classes)[self.y] if self.classes else self.y

    @property
    def distinct(self) -> int:
        """Number of distinct rows."""
        return int(self.groups.max()) + 1

    def rows(self, chosen: np.ndarray) -> Data:
        """Return some of the rows."""
        units = None if self.units is None else np.unique(self.units[chosen], return_inverse=True)[1].reshape(-1)
        splits = None if self.splits is None else self.splits.rows(chosen)
        weights = None if self.weights is None else uneven(self.weights[chosen])
        return replace(self, x=self.x[chosen], y=self.y[chosen], units=units, splits=splits, weights=weights)

    def task(self) -> Task:
        """Return the table as a task."""
        x, y = torch.from_numpy(np.ascontiguousarray(self.x)), torch.from_numpy(np.ascontiguousarray(self.y))
        weights = None if self.weights is None else torch.from_numpy(self.weights)
        if self.classes:
            return Task(x, y.long(), loss="cross_entropy", classes=self.classes, name="table", weights=weights)
        return Task(x, y, name="table", weights=weights)


def apart(data: Data, training: np.ndarray, out: np.ndarray) -> tuple[Data, Data]:
    """Return the training rows and the held-out rows, both with the training rows' mean output subtracted."""
    data = replace(data, splits=None)
    known, held_out = data.rows(training), data.rows(out)
    mean = 0 if data.classes else np.average(known.y, axis=0, weights=known.weights)
    return replace(known, y=known.y - mean), replace(held_out, y=held_out.y - mean)


@dataclass(frozen=True)
class Scaling:
    """x -> (x - x_mean) x_factor, y -> (y - y_mean) y_factor; the factor of a constant column is 0.

    Attributes
    ----------
    x_mean, x_factor : ndarray
        (d_in,).
    y_mean, y_factor : ndarray
        (d_out,); mean 0 and factor 1 for class logits.
    """

    x_mean: np.ndarray
    x_factor: np.ndarray
    y_mean: np.ndarray
    y_factor: np.ndarray

    def x(self, table: np.ndarray) -> np.ndarray:
        """Return inputs in the scale of training."""
        return (table - self.x_mean) * self.x_factor

    def y(self, table: np.ndarray) -> np.ndarray:
        """Return outputs in the scale of training."""
        return (table - self.y_mean) * self.y_factor

    def unscaled_input(self, net: MLP) -> MLP:
        """Return the network that takes x in original units, float64."""
        weights, biases = layers_of(net)
        weights[0] = weights[0] * torch.from_numpy(self.x_factor)
        biases[0] = biases[0] - weights[0] @ torch.from_numpy(self.x_mean)
        return from_layers(weights, biases, net.slope)

    def unscaled_output(self, net: MLP) -> MLP:
        """Return the network that returns y in original units, float64; for a constant column, its mean."""
        weights, biases = layers_of(net)
        factor = self.y_factor
        inverse = torch.from_numpy(np.divide(1.0, factor, out=np.zeros_like(factor), where=factor > 0))
        weights[-1] = weights[-1] * inverse[:, None]
        biases[-1] = biases[-1] * inverse + torch.from_numpy(self.y_mean)
        return from_layers(weights, biases, net.slope)


def layers_of(net: MLP) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weights and biases of a network, float64."""
    return [w.detach().double() for w in net.weights], [b.detach().double() for b in net.biases]


def scaling_of(
    x: np.ndarray,
    y: np.ndarray | None,
    outputs: str = "auto",
    classes: int = 0,
    weights: np.ndarray | None = None,
) -> Scaling:
    """Return the scaling of a table: every input to the same variance, and the outputs jointly or each separately.

    Inputs have arbitrary units: each is divided by its standard deviation, then all by a common factor, so that the
    root mean square of ||x|| is 3. Outputs may share a unit (pixels, a spectrum), and division by a small spread would
    amplify noise: "auto" divides all by one number, so that the root mean square of ||y|| is 2, unless their standard
    deviations differ by more than a factor of 10; then each is first divided by its own.

    Parameters
    ----------
    x : ndarray
        (N, d_in).
    y : ndarray or None
        (N, d_out); None for class logits.
    outputs : {"auto", "jointly", "each"}
        How outputs are scaled.
    classes : int
        Number of logits where ``y`` is None.
    weights : ndarray, optional
        Of the rows, (N,).

    Examples
    --------
    >>> made = scaling_of(np.array([[0.0, 5.0], [2.0, 5.0]]), np.array([[1.0], [3.0]]))
    >>> made.x_factor.tolist(), made.y_factor.tolist()
    ([3.0, 0.0], [2.0])
    """
    x_factor, x_mean = _each(x, X_NORM, weights), np.average(x, axis=0, weights=weights)
    if y is None:
        return Scaling(x_mean, x_factor, np.zeros(classes), np.ones(classes))
    varies, own = ~constant_columns(y), spread(y, weights)
    if outputs == "each" or (outputs == "auto" and varies.any() and np.ptp(np.log(own[varies])) > np.log(UNLIKE)):
        y_factor = _each(y, Y_NORM, weights)
    else:
        total = np.sqrt(np.square(own[varies]).sum())
        y_factor = np.where(varies, Y_NORM / total if total > 0 else 0.0, 0.0)
    y_mean = np.where(varies, np.average(y, axis=0, weights=weights), y[0])  # no rounding of constants
    return Scaling(x_mean, x_factor, y_mean, y_factor)


def _each(table: np.ndarray, norm: float, weights: np.ndarray | None) -> np.ndarray:
    varies = ~constant_columns(table)
    own = np.where(varies, spread(table, weights), 1.0)
    return np.where(varies, norm / (own * np.sqrt(max(int(varies.sum()), 1))), 0.0)
