"""Formulas for coordinates and outputs, as text and as a table."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank.discovery.symbolic.expressions import Expr, complexity, printed, renamed, values

SHOWN = 12  # terms of a sum that are shown in the table


@dataclass(frozen=True)
class Formula(Printed):
    """A formula for one output, or for one coordinate.

    Attributes
    ----------
    name : str
        Of the output, or z1, z2, ...
    kind : {"coordinate", "output"}
        A coordinate is a formula in the inputs, an output one in the coordinates.
    verdict : {"formula", "linear", "none", "not searched"}
        "linear": a linear formula predicts as well as any other. "none": no formula predicts held-out rows better than
        a constant; for a coordinate, none explains enough of it.
    expression : sympy expression
        In X0, X1, ...: the columns ``of``, in order.
    of : tuple of str
        Names of these columns.
    r2 : float or None
        Share of the variance on held-out rows that the formula explains; for a coordinate, the share of the network's
        coordinate that a monotone function of it explains (a linear one, for linear combinations). Below 0, it is
        worse than the mean. None where the formula was not searched, or does not take the network's place.
    r2_linear, r2_network : float or None
        The same for the linear least-squares formula in the inputs, and for the network; None for a coordinate.
    """

    name: str
    kind: str
    verdict: str
    expression: Expr
    of: tuple[str, ...]
    r2: float | None
    r2_linear: float | None
    r2_network: float | None

    @property
    def text(self) -> str:
        """The right side, in the names of the columns, whole: what is printed is what R^2 is of."""
        rejected = self.kind == "coordinate" and self.verdict == "none"
        return "-" if rejected or self.verdict == "not searched" else printed(renamed(self.expression, self.of))

    @property
    def complexity(self) -> int:
        """Number of operations, variables and constants."""
        return complexity(self.expression)

    def __str__(self) -> str:
        return f"{self.name} = {self.text}"

    def evaluate(self, table: np.ndarray) -> np.ndarray:
        """Return the values on the rows of a table of the columns ``of``, (N,); NaN where it is undefined."""
        return values(self.expression, np.asarray(table, dtype=np.float64))


@dataclass(frozen=True)
class Formulas(Printed):
    """Formulas that carry inputs to coordinates, and coordinates to outputs; prints itself.

    Coordinates are determined up to invertible maps: where z1 is one, so are 2 z1 - 1 and exp(z1). A formula for a
    coordinate takes the place of the network's: the network's is a monotone function of it.

    Attributes
    ----------
    engine : str
        What searched.
    coordinates, outputs : tuple of Formula
        One for each.
    rows, held_out : int
        Number of rows that formulas and network were fitted to, and of those that R^2 is of.
    notes : tuple of str
        Remarks.
    encode, read : callable
        Return the network's coordinates of rows, and rows as an array.
    """

    engine: str
    coordinates: tuple[Formula, ...]
    outputs: tuple[Formula, ...]
    rows: int
    held_out: int
    notes: tuple[str, ...]
    encode: Callable[[Any], np.ndarray]
    read: Callable[[Any], np.ndarray]

    def transform(self, X: Any) -> np.ndarray:
        """Return the coordinates z1, z2, ... of rows, (N, k): by their formulas, else by the network."""
        x = self.read(X)
        columns = [formula.evaluate(x) for formula in self.coordinates]
        missing = [j for j, formula in enumerate(self.coordinates) if formula.verdict == "none"]
        if missing:
            by_network = self.encode(x)
            for j in missing:
                columns[j] = by_network[:, j]
        return np.column_stack(columns) if columns else np.zeros((len(x), 0))

    def predict(self, X: Any) -> np.ndarray:
        """Return the outputs of rows by the formulas, (N, d_out); NaN where one is undefined or was not searched."""
        table = self.transform(X) if self.coordinates else self.read(X)
        made = [
            np.full(len(table), np.nan) if formula.verdict == "not searched" else formula.evaluate(table)
            for formula in self.outputs
        ]
        return np.column_stack(made)

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each formula: its text, verdict, complexity and R^2 on held-out rows (NaN for None)."""
        names = ("name", "kind", "verdict", "text", "complexity", "r2", "r2_linear", "r2_network")
        rows = [[getattr(formula, name) for name in names] for formula in (*self.coordinates, *self.outputs)]
        return pd.DataFrame(rows, columns=["name", "kind", "verdict", "formula", *names[4:]])

    def _content(self) -> Iterator[Part]:
        yield f"formulas by {self.engine}: fitted to {self.rows} rows, R^2 on {self.held_out} held-out rows"
        if self.coordinates:
            yield Table("Coordinates", [self._coordinate(formula) for formula in self.coordinates])
        yield Table("Outputs", [self._output(formula) for formula in self.outputs])
        if any(score is not None and score < 0 for f in self.outputs for score in (f.r2, f.r2_linear, f.r2_network)):
            yield "R^2 below 0: worse than the mean of the other rows"
        yield from (f"note: {note}" for note in self.notes)

    @staticmethod
    def _coordinate(formula: Formula) -> dict[str, object]:
        none = formula.verdict == "none"
        shown = "none found: by the network" if none else _short(formula)
        size = "-" if none else formula.complexity
        return {"coordinate": formula.name, "formula": shown, "complexity": size, "R^2": _r2(formula.r2)}

    @staticmethod
    def _output(formula: Formula) -> dict[str, object]:
        none = "none: no better than a constant"
        shown = {"none": none, "not searched": "not searched"}.get(formula.verdict, _short(formula))
        return {
            "output": formula.name,
            "formula": shown,
            "complexity": "-" if formula.verdict in ("none", "not searched") else formula.complexity,
            "R^2": _r2(formula.r2),
            "linear in x": _r2(formula.r2_linear),
            "network": _r2(formula.r2_network),
        }


def _short(formula: Formula) -> str:
    terms = len(formula.expression.args) if formula.expression.is_Add else 1
    return formula.text if terms <= SHOWN else f"a sum of {terms} terms: in its text"


def _r2(value: float | None) -> str:
    return "-" if value is None else "below 0" if value < 0 else f"{value:.3f}"
