"""Formulas by symbolic regression: what is found, what is none, and rows that nothing has seen."""

import numpy as np
import pandas as pd
import pytest
import sympy
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import LinearRegression

from bnrank.discovery import BottleneckRegressor, NothingFoundWarning
from bnrank.discovery.estimators import closed_forms
from bnrank.discovery.symbolic import choice, engines, expressions, search
from bnrank.discovery.symbolic.expressions import PREFIX, parsed, values

LINEAR = BottleneckRegressor(ridges=[0.02], n_networks=1, depth=4, cv=2, steps=100, robust=False)


class Knows(RegressorMixin, BaseEstimator):
    """A regressor that proposes one formula, in the manner of PySR."""

    def __init__(self, formula="x0"):
        self.formula = formula

    def fit(self, X, y):
        self.rows_ = len(X)
        return self

    def predict(self, X):
        return np.zeros(len(X))

    def sympy(self):
        return sympy.sympify(self.formula)


def planted(rows=400, seed=0):
    """Two outputs that depend on x1 x2, the coordinate that a network could have found, and 2 percent noise."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.5, 1.5, (rows, 6))
    s = x[:, 0] * x[:, 1]
    y = np.column_stack([np.sin(s), s**2])
    z = np.exp(s)[:, None]
    unit = np.arange(rows)
    names = tuple(f"x{i}" for i in range(6))
    y = y + 0.02 * y.std(axis=0) * rng.normal(size=y.shape)
    return search.Problem(x, y, z, y, choice.split(unit, seed), names, ("a", "b"), "gplearn", seed, str)


@pytest.fixture
def small(monkeypatch):
    pytest.importorskip("gplearn")
    monkeypatch.setattr(engines, "POPULATION", 300)
    monkeypatch.setattr(engines, "GENERATIONS", 6)


@pytest.fixture(scope="module")
def linear():
    rng = np.random.default_rng(3)
    x = pd.DataFrame(rng.normal(size=(120, 4)) * [1, 10, 100, 1], columns=["mass", "height (cm)", "t", "q"])
    y = x.to_numpy() @ rng.normal(size=(4, 2)) @ rng.normal(size=(2, 3)) + [1.0, 2.0, 3.0]
    return x, y, BottleneckRegressor(LINEAR.n_components, **options()).fit(x, y)


def options():
    return {k: v for k, v in LINEAR.get_params().items() if k != "n_components"}


def test_a_linear_map_is_returned(linear):
    x, y, found = linear
    made = found.formulas(x, y)
    plane = LinearRegression().fit(x, y)  # exact: there is no noise
    inputs, z = expressions.variables(4), expressions.variables(2)
    for j, formula in enumerate(made.outputs):
        assert formula.verdict == "linear"
        of_inputs = [c.expression.subs({s: sympy.Symbol(f"i{s}") for s in inputs}) for c in made.coordinates]
        whole = formula.expression.subs(dict(zip(z, of_inputs, strict=True)), simultaneous=True).expand()
        slopes = [float(whole.coeff(sympy.Symbol(f"i{s}"))) for s in inputs]
        spread = x.to_numpy().std(axis=0)  # digits suffice for a thousandth of the spread
        np.testing.assert_allclose(slopes * spread, plane.coef_[j] * spread, atol=5e-3 * y[:, j].std())
    np.testing.assert_allclose(made.predict(x), y, atol=0.01 * y.std())
    assert "[height (cm)]" in str(made)
    assert made.to_frame()["r2"].round(4).tolist() == [1.0] * 5


def test_noise_has_no_formula_and_needs_no_engine(monkeypatch):
    monkeypatch.setattr(engines, "_module", lambda name: pytest.fail("an engine was used"))
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(100, 3)), rng.normal(size=(100, 2))
    with pytest.warns(NothingFoundWarning):
        found = BottleneckRegressor(**options()).fit(x, y)
    made = found.formulas(x, y)
    assert [formula.verdict for formula in made.outputs] == ["none", "none"]
    assert made.coordinates == ()
    assert str(made).count("none: no better than a constant") == 2
    assert np.ptp(made.predict(x), axis=0).tolist() == [0, 0]


def test_noise_of_a_network_that_saw_it_has_no_formula(small):
    seed = 1
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(160, 4)), rng.normal(size=(160, 1))
    rows = choice.split(np.arange(160), seed)
    problem = search.Problem(x, y, x, y, rows, tuple("abcd"), ("y",), "gplearn", 0, str)
    formula, _ = search.output(problem, 0, problem.inputs, x)
    assert formula.verdict == "none"


def test_a_product_and_functions_of_it(small):
    coordinates, outputs = search.searched(planted(), 10)
    assert [formula.text for formula in coordinates] == ["x0*x1"]
    first, second = (formula.expression for formula in outputs)
    s = np.linspace(-2, 2, 50)[:, None]
    np.testing.assert_allclose(values(first, s), np.sin(s[:, 0]), atol=0.03)
    np.testing.assert_allclose(values(second, s), s[:, 0] ** 2, atol=0.05)
    assert min(formula.r2 for formula in outputs) > 0.99
    assert max(formula.r2_linear for formula in outputs) < 0.2


def test_the_same_seed_gives_the_same_formulas(small):
    problem = planted(100)
    first, again, other = (engines.proposals("gplearn", problem.x, problem.y[:, 0], seed) for seed in (0, 0, 1))
    assert first == again != other


def test_a_network_is_given_formulas(small):
    rng = np.random.default_rng(7)
    x = rng.uniform(-1.5, 1.5, (200, 3))
    y = np.sin(2 * x[:, 0] + x[:, 1]) + 0.02 * rng.normal(size=200)
    found = BottleneckRegressor(ridges=[0.01], depth=4, n_networks=1, cv=2).fit(x, y)
    made = found.formulas(x, y)
    assert found.model_ == "network"
    (formula,) = made.outputs
    assert formula.r2 > 0.95
    assert formula.r2 > formula.r2_linear + 0.1
    assert formula.r2_network > 0.9
    np.testing.assert_allclose(made.predict(x)[:, 0], y, atol=0.4)
    assert made.transform(x).shape == (200, len(made.coordinates))


def test_combinations_have_a_largest_weight_of_one():
    x = np.random.default_rng(0).normal(size=(50, 3)) * [1.0, 100.0, 1.0]
    formula = closed_forms._combination(np.array([0.5, 0.01, 0.001]), x)  # contributions 0.5, 1, 0.001
    assert formula == parsed("50 * X0 + X1", 3)


def test_operon(monkeypatch):
    pytest.importorskip("pyoperon")
    monkeypatch.setattr(engines, "EVALUATIONS", 20_000)
    x = np.random.default_rng(0).uniform(0.5, 2, (200, 2))
    found = engines.proposals("operon", x, 300 * x[:, 0] / x[:, 1] + 2, 0)
    fits = [choice.fitted(expr, x, x[:, 0] / x[:, 1]) for expr in found]
    assert max(choice.r2(x[:, 0] / x[:, 1], values(expr, x), 1.0) for expr in fits if expr is not None) > 0.9999
    assert found == engines.proposals("operon", x, 300 * x[:, 0] / x[:, 1] + 2, 0)


def test_held_out_rows_are_seen_by_nothing(linear):
    x, y, found = linear
    rows = choice.split(np.arange(len(x)), 0)
    other = y.copy()
    other[rows.test] += np.random.default_rng(0).normal(size=(len(rows.test), 3)) * 1e3
    first, second = (found.formulas(x, table) for table in (y, other))
    assert [f.text for f in first.outputs] == [f.text for f in second.outputs]
    assert [f.verdict for f in second.outputs] == ["none"] * 3
    assert max(f.r2_network for f in second.outputs) < 0.1


def test_a_fitted_regressor_is_read_and_not_changed(linear):
    problem = planted()
    engine = Knows("x0 * x1")
    made = search.coordinate(search.Problem(**{**vars(problem), "engine": engine}), 0)
    assert (made.verdict, made.text) == ("formula", "x0*x1")
    assert not hasattr(engine, "rows_")


@pytest.mark.parametrize(
    ("engine", "error", "named"),
    [
        ("pysr", ValueError, "expected one of 'gplearn', 'operon'"),
        (Knows, TypeError, "or a regressor"),
        (3, TypeError, "or a regressor"),
    ],
)
def test_engines_that_are_refused(linear, engine, error, named):
    x, y, found = linear
    with pytest.raises(error, match=f"engine: .*{named}"):
        found.formulas(x, y, engine=engine)


def test_a_regressor_without_a_formula_is_refused():
    x = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.raises(TypeError, match="LinearRegression, whose formula cannot be read"):
        engines.proposals(LinearRegression(), x, x[:, 0], 0)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gplearn.genetic", None)
    with pytest.raises(ImportError, match=r"bnrank\[formulas\]"):
        engines.expect_installed("gplearn")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"y": lambda y: y[:, :2]}, "y: got 2 columns, expected 3"),
        ({"max_outputs": 0}, "max_outputs: got 0"),
        ({"groups": np.zeros(120)}, "groups: got 1 group"),
        ({"groups": np.arange(120) % 2}, "groups: got 2 independent rows, expected at least 8"),
    ],
)
def test_bad_input_is_named(linear, change, named):
    x, y, found = linear
    change = dict(change)
    table = change.pop("y")(y) if "y" in change else y
    with pytest.raises(ValueError, match=named):
        found.formulas(x, table, **change)


def test_groups_are_on_one_side():
    unit = np.random.default_rng(0).integers(0, 12, 100)
    rows = choice.split(unit, 0)
    sides = [set(unit[part]) for part in (rows.fit, rows.choose, rows.test)]
    assert not sides[0] & sides[1]
    assert not sides[1] & sides[2]
    assert not sides[0] & sides[2]
    assert sorted([*rows.known, *rows.test]) == list(range(100))


def test_the_simplest_within_a_standard_error():
    rng = np.random.default_rng(0)
    candidates = [parsed(text, 1) for text in ("0", "X0", "X0 + sin(X0)", "X0 + sin(X0) + X0**3")]
    base = rng.exponential(size=200)
    noise = rng.normal(size=200)
    losses = np.array([base + 3, base + 0.1, base + 1e-3 * (noise - noise.mean()) + 1e-5, base - 1e-5])
    assert choice.simplest(candidates, losses, np.arange(200)) == 2
    assert choice.simplest(candidates, losses, np.arange(200), rtol=0.1) == 1
    paired = losses[2] - losses[3]  # the rule, written out
    assert 0 < paired.mean() <= paired.std(ddof=1) / np.sqrt(200) < (losses[1] - losses[3]).mean()


def test_fits_are_those_of_least_squares():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 3)) * [1, 10, 0.1] + [0, 100, 0]
    y = 3 * np.exp(0.5 * x[:, 0]) + 0.1 * rng.normal(size=80)
    oracle = LinearRegression().fit(x, y)
    np.testing.assert_allclose(values(choice.least_squares_plane(x, y), x), oracle.predict(x), atol=1e-8)
    square = parsed("X0**2", 3)
    np.testing.assert_allclose(
        values(expressions.scaled(square, x, y), x), np.polyval(np.polyfit(x[:, 0] ** 2, y, 1), x[:, 0] ** 2)
    )
    start = parsed("2.0001 * exp(0.6 * X0)", 3)
    made = expressions.refined(start, x, y)
    constants = sorted(float(c) for c in made.atoms(sympy.Float))
    np.testing.assert_allclose(constants, [0.5, 3.0], atol=0.05)
    assert np.square(values(made, x) - y).sum() < np.square(values(start, x) - y).sum() / 5


def test_what_is_printed_is_what_is_scored():
    problem = planted()
    expr, _ = choice.chosen([parsed("sin(X0)", 1)], problem.z, problem.y[:, 0], problem.rows)
    again = sympy.sympify(expressions.printed(expr), locals={"X0": expressions.variables(1)[0]})
    assert np.array_equal(values(again, problem.z), values(expr, problem.z))


@pytest.mark.parametrize(
    ("text", "oracle"),
    [
        ("div(X0, X1)", lambda a, b: a / b),
        ("log(sub(X0, X1))", lambda a, b: np.log(np.abs(a - b))),
        ("sqrt(mul(X0, -2.5))", lambda a, b: np.sqrt(np.abs(2.5 * a))),
        ("neg(inv(add(X1, sin(X0))))", lambda a, b: -1 / (b + np.sin(a))),
    ],
)
def test_expressions_of_gplearn(text, oracle):
    table = np.random.default_rng(0).normal(size=(20, 2))
    np.testing.assert_allclose(values(parsed(text, 2, PREFIX), table), oracle(*table.T))


def test_undefined_rows_are_nan_and_never_chosen():
    table = np.array([[1.0], [0.0], [-1.0], [2.0]])
    assert np.isnan(values(parsed("1 / X0", 1), table)).tolist() == [False, True, False, False]
    assert np.isnan(values(parsed("log(X0)", 1), table)).tolist() == [False, True, True, False]
    assert expressions.scaled(parsed("1 / X0", 1), table, np.arange(4.0)) is None
    assert choice.r2(np.arange(4.0), values(parsed("1 / X0", 1), table), 1.5) == -np.inf
    assert not choice.beats_constant(np.arange(4.0), values(parsed("log(X0)", 1), table), 1.5, np.arange(4))


def test_only_some_outputs_are_searched():
    problem = planted()
    wide = search.Problem(
        **{**vars(problem), "engine": Knows("x0"), "y": problem.y * [1.0, 10.0], "predicted": problem.y * [1.0, 5.0]}
    )
    _, outputs = search.searched(wide, 1)
    assert [formula.verdict == "not searched" for formula in outputs] == [
        False,
        True,
    ]  # in the order of shares, not of units
    assert outputs[1].r2 is None


@pytest.mark.parametrize(("offset", "spread"), [(101325.0, 5.0), (2450000.0, 100.0)])
def test_inputs_far_from_zero_have_enough_digits(offset, spread):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)) * [spread, 1.0] + [offset, 0.0]
    y = 0.123456 * (x[:, [0]] - offset)
    rows = choice.split(np.arange(200), 0)
    problem = search.Problem(x, y, x, y, rows, ("a", "b"), ("y",), Knows("x0"), 0, str)
    formula, _ = search.output(problem, 0, problem.inputs, x)
    assert (formula.verdict, formula.expression.free_symbols) == ("linear", {sympy.Symbol("X0", real=True)})
    again = sympy.lambdify(sympy.Symbol("a"), sympy.sympify(formula.text))(x[rows.test, 0])
    assert choice.r2(y[rows.test, 0], again, float(y[rows.known].mean())) > 0.9999


def test_a_fit_far_from_zero_prints_what_it_scores():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 3)) * [5.0, 1.0, 1.0] + [101325.0, 0.0, 0.0]
    y = np.column_stack([0.123456 * (x[:, 0] - 101325), x[:, 1] - 0.3 * (x[:, 0] - 101325)])
    made = BottleneckRegressor(**options()).fit(x, y).formulas(x, y)
    named = {f"x{i}": x[:, i] for i in range(3)}
    for formula in made.coordinates:
        named[formula.name] = eval(formula.text, {}, named)
    for j, formula in enumerate(made.outputs):
        assert formula.r2 > 0.999
        assert choice.r2(y[:, j], eval(formula.text, {}, named), y[:, j].mean()) > 0.999


def test_rows_whose_outliers_are_replaced_are_left_out():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 12))
    y = x[:, :2] @ rng.normal(size=(2, 8)) + 0.01 * rng.normal(size=(80, 8))
    x[np.arange(24), rng.integers(0, 12, 24)] = 1e4
    made = BottleneckRegressor(**options() | {"robust": True}).fit(x, y).formulas(x, y)
    assert made.rows + made.held_out == 56
    assert [formula.verdict for formula in made.outputs] == ["linear"] * 8
    assert min(formula.r2 for formula in made.outputs) > 0.95


def test_few_groups_are_refused_or_judged():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    y = x @ [[1.0, 2.0], [1.0, -1.0]]
    found = BottleneckRegressor(**options()).fit(x, y)
    with pytest.raises(ValueError, match="groups: got 5 independent rows, expected at least 8"):
        found.formulas(x, y, groups=np.arange(80) % 5)
    made = found.formulas(x, y, groups=np.arange(80) % 8)
    assert [formula.verdict for formula in made.outputs] == ["linear"] * 2
    assert choice.split(np.arange(8), 0).test.shape == (3,)


def test_chance_of_three_groups_is_small():
    rng, unit = np.random.default_rng(0), np.repeat(np.arange(3), 10)
    draws = rng.normal(size=(300, 2, 30)) * [[[1.0], [0.05]]]
    assert np.mean([choice.beats_constant(y, made, 0.0, unit) for y, made in draws]) < 0.04
    assert choice.beats_constant(draws[0, 0], draws[0, 0], 0.0, unit)


def test_small_terms_are_left_out_together():
    x = np.random.default_rng(0).normal(size=(2000, 200))
    weights = np.r_[1.0, np.full(199, 0.029)]
    made = values(closed_forms._combination(weights, x), x)
    assert np.corrcoef(made, x @ weights)[0, 1] ** 2 > 0.998


def test_r2_of_a_combination_is_that_of_the_network_direction():
    problem = planted()
    own = problem.x[:, 0] + 0.5 * problem.x[:, 1]
    shown = problem.shown(0, parsed("X0", 6), own)
    test = problem.rows.test
    assert shown.r2 == pytest.approx(np.corrcoef(problem.x[test, 0], own[test])[0, 1] ** 2, abs=0.02)


def test_a_network_without_directions_goes_to_the_inputs():
    problem = planted()
    problem = search.Problem(**{**vars(problem), "engine": Knows("x0 * x1")})
    coordinates, (formula,) = search.of_combinations(problem, [], np.zeros((400, 0)))
    assert coordinates == ()
    assert formula.of == problem.inputs


@pytest.mark.parametrize("single", [True, False])
def test_a_search_does_not_see_held_out_outputs(single):
    problem = search.Problem(**{**vars(planted(200)), "engine": Knows("sin(x0)")})
    changed = {name: getattr(problem, name).copy() for name in ("y", "predicted")}
    for table in changed.values():
        table[problem.rows.test] += np.random.default_rng(0).normal(size=(len(problem.rows.test), 2)) * 1e3
    found = []
    for case in (problem, search.Problem(**{**vars(problem), **changed})):
        combinations = [parsed("X0 + 0.5 * X1", 6)]
        own = values(combinations[0], case.x)[:, None]
        made = search.of_combinations(case, combinations, own) if single else search.searched(case, 1)
        found.append([formula.expression for part in made for formula in part])
        r2 = made[1][0].r2
    assert found[0] == found[1]
    assert r2 < 0.1  # of the changed rows


def test_rows_near_held_out_blocks_are_not_used():
    rows = closed_forms._apart(choice.split(np.arange(120) // 10, 0), 5)
    assert np.abs(rows.test[:, None] - rows.known).min() == 6
    assert min(len(rows.fit), len(rows.choose)) >= 10


def test_long_sums_are_whole_in_their_text():
    expr = expressions.linear(np.r_[np.full(15, 1.5), 1e-3], 0.0)
    text = expressions.printed(expr)
    assert text.count("X") == 16
    assert "0.001*X15" in text
