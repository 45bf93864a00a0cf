"""The search for formulas, given the coordinates of a network on the rows of a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnrank.discovery.symbolic.choice import (
    Split,
    beats_constant,
    chosen,
    chosen_coordinate,
    least_squares_plane,
    link,
    over_units,
    r2,
)
from bnrank.discovery.symbolic.engines import proposals
from bnrank.discovery.symbolic.expressions import Expr, complexity, values
from bnrank.discovery.symbolic.result import Formula

ACCEPTED = 0.9  # R^2 from which the formula of a coordinate takes the place of the network


@dataclass(frozen=True)
class Problem:
    """A table, what a network makes of it, and how formulas are searched.

    Attributes
    ----------
    x, y : ndarray
        (N, d_in) and (N, d_out).
    z : ndarray
        Coordinates of the network, (N, k).
    predicted : ndarray
        Outputs of the network, (N, d_out).
    rows : Split
        The network was fitted to all rows but ``rows.test``.
    inputs, outputs : tuple of str
        Names of the columns.
    engine : str or regressor
        What proposes formulas.
    seed : int
        Given to the engine.
    tell : callable
        Told what is searched.
    """

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    predicted: np.ndarray
    rows: Split
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    engine: Any
    seed: int
    tell: Callable[[str], None]

    def judged(self, j: int, expr: Expr, of: Sequence[str], table: np.ndarray, verdict: str = "") -> Formula:
        """Return a formula for output j in the columns of a table, with its R^2 on held-out rows."""
        test, known = self.rows.test, self.rows.known
        y, mean = self.y[test, j], float(self.y[known, j].mean())
        made = values(expr, table[test])
        plane = least_squares_plane(self.x[known], self.y[known, j])
        if not verdict:
            useful = bool(expr.free_symbols) and beats_constant(y, made, mean, self.rows.unit[test])
            verdict = ("linear" if _is_linear(expr) else "formula") if useful else "none"
        others = r2(y, values(plane, self.x[test]), mean), r2(y, self.predicted[test, j], mean)
        own = None if verdict == "not searched" else r2(y, made, mean)
        return Formula(self.outputs[j], "output", verdict, expr, tuple(of), own, *others)

    def shown(self, j: int, expr: Expr, own: np.ndarray) -> Formula:
        """Return a linear formula for coordinate j; R^2 is that of the network's own coordinate, up to a + b z."""
        known, test = self.rows.known, self.rows.test
        made = values(expr, self.x)
        predicted = values(least_squares_plane(made[known, None], own[known]), made[test, None])
        score = r2(own[test], predicted, float(own[known].mean()))
        return Formula(f"z{j + 1}", "coordinate", "linear", expr, self.inputs, score, None, None)


def coordinate(problem: Problem, j: int) -> Formula:
    """Return the formula for coordinate j of the network: in the inputs, up to a monotone function."""
    problem.tell(f"formula of coordinate {j + 1}")
    x, z, rows = problem.x, problem.z[:, j], problem.rows
    proposed = proposals(problem.engine, x[rows.fit], z[rows.fit], problem.seed, ranks=True)
    expr, score = chosen_coordinate(proposed, x, z, rows)
    held_out = None
    if expr is not None:
        known, test = rows.known, rows.test
        made = values(expr, x)
        if np.isfinite(made).all():
            held_out = r2(z[test], link(made[known], z[known]).predict(made[test]), float(z[known].mean()))
        else:
            score = 0.0
    verdict = "none" if expr is None or score < ACCEPTED else "linear" if _is_linear(expr) else "formula"
    held_out = None if verdict == "none" else held_out
    shown = expr if expr is not None else least_squares_plane(np.zeros_like(x[:1]), np.zeros(1))
    return Formula(f"z{j + 1}", "coordinate", verdict, shown, problem.inputs, held_out, None, None)


def output(problem: Problem, j: int, of: Sequence[str], table: np.ndarray) -> tuple[Formula, np.ndarray]:
    """Return the formula for output j in the columns of a table, and its squared errors on the rows of the choice."""
    problem.tell(f"formula of {problem.outputs[j]}")
    y, rows = problem.y[:, j], problem.rows
    proposed = proposals(problem.engine, table[rows.fit], y[rows.fit], problem.seed)
    expr, losses = chosen(proposed, table, y, rows)
    return problem.judged(j, expr, of, table), losses


def searched(problem: Problem, max_outputs: int) -> tuple[tuple[Formula, ...], tuple[Formula, ...]]:
    """Return formulas for all coordinates, and for the outputs of which the network explains the largest shares."""
    coordinates = tuple(coordinate(problem, j) for j in range(problem.z.shape[1]))
    table = problem.z.copy()
    for j, formula in enumerate(coordinates):
        if formula.verdict != "none":
            table[:, j] = formula.evaluate(problem.x)
    names = [formula.name for formula in coordinates]
    number = problem.y.shape[1]
    y, made = problem.y[problem.rows.known], problem.predicted[problem.rows.known]
    shares = np.array([r2(y[:, j], made[:, j], float(y[:, j].mean())) for j in range(number)])
    left = {int(j) for j in np.argsort(-shares, kind="stable")[max_outputs:]}
    outputs = []
    for j in range(number):
        if j in left:
            constant = least_squares_plane(np.zeros((1, len(names))), np.zeros(1))
            outputs.append(problem.judged(j, constant, names, table, "not searched"))
        else:
            outputs.append(output(problem, j, names, table)[0])
    return coordinates, tuple(outputs)


def of_combinations(
    problem: Problem, combinations: Sequence[Expr], own: np.ndarray
) -> tuple[tuple[Formula, ...], tuple[Formula, ...]]:
    """Return formulas for one output: in linear combinations of the inputs, or in the inputs where that is better.

    The combinations are kept if they predict the rows of the choice as well, within a standard error, with the simpler
    formulas in all. The network whose combinations these are has been fitted to these rows, too, whereas formulas in
    the inputs have not: the comparison favors the combinations a little. ``own``, (N, number of combinations), has the
    network's directions on the rows, without rounding.
    """
    if not combinations:
        return (), (output(problem, 0, problem.inputs, problem.x)[0],)
    table = np.column_stack([values(expr, problem.x) for expr in combinations])
    made = tuple(problem.shown(j, expr, own[:, j]) for j, expr in enumerate(combinations))
    first, losses = output(problem, 0, [formula.name for formula in made], table)
    second, others = output(problem, 0, problem.inputs, problem.x)
    worse, error = over_units(losses - others, problem.rows.unit[problem.rows.choose])
    sizes = [first.complexity + sum(complexity(expr) for expr in combinations), second.complexity]
    inputs_win = worse > error or (worse > -error and sizes[1] < sizes[0])
    return ((), (second,)) if inputs_win else (made, (first,))


def _is_linear(expr: Expr) -> bool:
    return all(expr.diff(symbol).is_number for symbol in expr.free_symbols)
