"""Engines of symbolic regression: what they propose for a table, as expressions in X0, X1, ..."""

import importlib
from typing import Any

import numpy as np
import sympy
from sklearn.base import clone

from bnrank._core import validation
from bnrank.discovery.symbolic.expressions import PREFIX, Expr, complexity, parsed, variables

ENGINES = ("gplearn", "operon")
FUNCTIONS = ("add", "sub", "mul", "div", "sqrt", "log", "sin")
LENGTH = 20  # operations, variables and constants of a formula, at most
POPULATION, GENERATIONS = 1000, 15  # of gplearn
EVALUATIONS = 200_000  # of Operon
READABLE = "a fitted attribute _program (gplearn), a method get_model_string (Operon) or a method sympy (PySR)"


def engine_of(engine: Any) -> Any:
    """Return a name of an engine, or a regressor, checked.

    Raises
    ------
    TypeError, ValueError
        If it is neither a name that is known nor a regressor.
    """
    if isinstance(engine, str):
        return validation.choice(engine, "engine", list(ENGINES))
    regressor = all(callable(getattr(engine, name, None)) for name in ("fit", "predict", "get_params"))
    if isinstance(engine, type) or not regressor:
        expected = f"{' or '.join(map(repr, ENGINES))}, or a regressor with {READABLE}"
        raise TypeError(f"engine: got {validation.describe(engine)}, expected {expected}")
    return engine


def expect_installed(engine: Any) -> None:
    """Raise ImportError, naming the extra, if the package of an engine is not installed."""
    if isinstance(engine, str):
        _module(engine)


def proposals(engine: Any, x: np.ndarray, y: np.ndarray, seed: int, *, ranks: bool = False) -> list[Expr]:
    """Return the formulas that an engine proposes for y, from short to long: the best one of every length.

    Parameters
    ----------
    engine : str or regressor
        "gplearn", "operon", or an object, which is cloned.
    x, y : ndarray
        (N, d) and (N,).
    seed : int
        Given to the engine.
    ranks : bool
        Whether y stands for any increasing function of itself; only gplearn makes use of it.
    """
    scale = np.array([_power_of_ten(column) for column in x.T])
    y = (y - y.mean()) / (y.std() or 1.0)
    if engine == "gplearn":
        found = _gplearn(x / scale, y, seed, ranks)
    elif engine == "operon":
        found = _operon(x / scale, y, seed)
    else:
        found = _object(engine, x / scale, y, seed)
    rescaled = {symbol: symbol / value for symbol, value in zip(variables(len(scale)), _exact(scale), strict=True)}
    readable = [expr for expr in found if expr is not None and expr.free_symbols and not _nested(expr)]
    unique = dict.fromkeys(expr.xreplace(rescaled) for expr in readable)
    return sorted(unique, key=complexity)


def _gplearn(x: np.ndarray, y: np.ndarray, seed: int, ranks: bool) -> list[Expr | None]:
    model = (
        _module("gplearn")
        .SymbolicRegressor(
            population_size=POPULATION,
            generations=GENERATIONS,
            stopping_criteria=1.0 - 1e-9,
            metric="spearman" if ranks else "pearson",
            function_set=FUNCTIONS,
            init_depth=(1, 4),
            tournament_size=10,
            parsimony_coefficient=0.001,
            p_crossover=0.7,
            p_subtree_mutation=0.1,
            p_hoist_mutation=0.05,
            p_point_mutation=0.1,
            const_range=(-3.0, 3.0),
            random_state=seed,
        )
        .fit(x, y)
    )
    best: dict[int, Any] = {}
    for program in (program for generation in model._programs for program in generation if program is not None):
        length = program.length_
        if length <= LENGTH and (length not in best or program.raw_fitness_ > best[length].raw_fitness_):
            best[length] = program
    front, top = [], -np.inf
    for length in sorted(best):
        if best[length].raw_fitness_ > top:
            front.append(best[length])
            top = best[length].raw_fitness_
    return [parsed(str(program), x.shape[1], PREFIX) for program in front]


def _operon(x: np.ndarray, y: np.ndarray, seed: int) -> list[Expr | None]:
    symbols = {"sqrt": "sqrtabs", "log": "logabs"}
    model = (
        _module("operon")
        .SymbolicRegressor(
            allowed_symbols=",".join([*(symbols.get(name, name) for name in FUNCTIONS), "constant", "variable"]),
            objectives=["r2", "length"],
            optimizer_iterations=3,
            max_length=LENGTH,
            population_size=500,
            generations=1000,
            max_evaluations=EVALUATIONS,
            model_selection_criterion="mean_squared_error",
            uncertainty=[1.0],
            n_threads=1,
            random_state=seed,
        )
        .fit(x, y)
    )
    names = [f"X{i}" for i in range(x.shape[1])]
    texts = [model.get_model_string(found["tree"], 6, names) for found in model.pareto_front_]
    return [parsed(text, x.shape[1], _OPERON) for text in texts]


def _object(engine: Any, x: np.ndarray, y: np.ndarray, seed: int) -> list[Expr | None]:
    model = clone(engine)
    if "random_state" in model.get_params():
        model.set_params(random_state=seed)
    model.fit(x, y)
    names = [f"X{i}" for i in range(x.shape[1])]
    if hasattr(model, "_program"):
        return [parsed(str(model._program), x.shape[1], PREFIX)]
    if hasattr(model, "get_model_string"):
        return [parsed(model.get_model_string(model.model_, 6, names), x.shape[1], _OPERON)]
    if callable(getattr(model, "sympy", None)):
        text = str(model.sympy())
        for place in reversed(range(x.shape[1])):  # PySR counts from x0
            text = text.replace(f"x{place}", f"X{place}")
        return [parsed(text, x.shape[1])]
    raise TypeError(f"engine: got {type(engine).__name__}, whose formula cannot be read, expected {READABLE}")


_OPERON: dict[str, Any] = {
    "log1p": lambda a: sympy.log(1 + a),
    "cbrt": sympy.cbrt,
    "fmin": sympy.Min,
    "fmax": sympy.Max,
}


def _nested(expr: Expr) -> bool:
    """Return whether a sine is within a sine, or a logarithm within a logarithm."""
    return any(inside.args[0].has(kind) for kind in (sympy.sin, sympy.log) for inside in expr.atoms(kind))


def _power_of_ten(column: np.ndarray) -> float:
    """Return the power of ten next to the root mean square of a column: constants of engines are of order 1."""
    size = float(np.sqrt(np.square(column).mean()))
    return float(10.0 ** round(np.log10(size))) if size else 1.0


def _exact(scale: np.ndarray) -> list[Expr]:
    return [sympy.Integer(10) ** round(np.log10(value)) for value in scale]


def _module(engine: str) -> Any:
    name, extra = {"gplearn": ("gplearn.genetic", "formulas"), "operon": ("pyoperon.sklearn", "operon")}[engine]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        hint = f"engine: got {engine!r}, which needs the package {package}: pip install 'bnrank[{extra}]'"
        raise ImportError(hint) from error
