"""F7: its claims on planted courses, what it computes against plain loops, and a tiny run."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial.distance import cdist

from bnrank.figures.f07_kernel_rates import computation as rates
from bnrank.figures.f07_kernel_rates import figure as f07
from bnrank.figures.f07_kernel_rates.computation import Course, Decay
from bnrank.figures.f07_kernel_rates.field import random_field
from bnrank.figures.harness import intervals
from bnrank.figures.harness.training import held_out, relative_error
from bnrank.tasks import composition, torus_map
from bnrank.tasks.task import normal, streams
from helpers import failing

SIZES = np.array([64.0, 128.0, 256.0, 512.0])
SPREAD = np.array([[0.9], [1.0], [1.1]])


def course(exponent, name="kernel", factor=1.0):
    """Three draws with about this exponent; the middle one is exact."""
    return Course(name, SIZES, factor * (SIZES / 64) ** -(exponent * SPREAD))


def decay(d, alpha, off=0.0, missing=0.01):
    errors = 3 * SIZES ** -(alpha / d * (1 + off) * SPREAD)
    return Decay("", SIZES, errors, "", d, alpha, SIZES ** -(alpha / d), missing)


def test_exponents_and_intervals_of_planted_courses():
    c = course(1.5)
    np.testing.assert_allclose(c.exponents, 1.5 * SPREAD[:, 0])
    mean, low, high = c.exponent
    half = stats.t.ppf(0.975, 2) * stats.sem(1.5 * SPREAD[:, 0])
    np.testing.assert_allclose((mean, low, high), (1.5, 1.5 - half, 1.5 + half))
    np.testing.assert_allclose(c.middle, (SIZES / 64) ** -1.5)
    np.testing.assert_allclose(Course("", SIZES, np.array([[9.0, 3.0, 1.0, 0.5]])).exponents, 0.3)  # 1, 1, 1, 0.5
    assert intervals.interval(np.array([2.0])) == (2.0, -np.inf, np.inf)
    assert decay(4, 2.0).expected == 0.5


def test_intervals_cover_the_mean_as_often_as_they_say():
    draws = np.random.default_rng(0).normal(2.0, 1.0, (2000, 4))
    covered = [low <= 2.0 <= high for _, low, high in map(intervals.interval, draws)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    ("courses", "fails"),
    [
        ([decay(1, 2.0), decay(1, 3.0), decay(4, 2.0)], []),
        ([decay(1, 2.0, 0.14), decay(4, 2.0, -0.14)], []),
        ([decay(1, 2.0, 0.16), decay(4, 2.0)], [0]),
        ([decay(1, 2.0), decay(1, 3.0, -0.16), decay(4, 2.0)], [0]),
        ([decay(1, 2.0), decay(4, 2.0, 0.2)], [1]),
        ([decay(1, 2.0), decay(4, 2.0, np.nan)], [1]),
        ([decay(1, 2.0, missing=0.06), decay(4, 2.0)], [2]),
    ],
)
def test_rate_claims(courses, fails):
    assert failing(f07.rate_claims(courses)) == fails


@pytest.mark.parametrize(
    ("deep", "kernel", "fails"),
    [
        (course(1.5), course(0.2), []),
        (course(0.2), course(1.5), [0, 1]),
        (course(0.5, factor=0.5), course(0.5), [0]),
        (course(0.8, factor=20.0), course(0.2), [0, 1]),  # worse than the mean all along
        (course(0.8, factor=3.0), course(0.01, factor=0.5), [1]),
        (Course("", SIZES, course(1.5).errors[[1]]), Course("", SIZES, course(0.2).errors[[1]]), [0]),  # one draw
        (Course("", SIZES, np.array([[1, 1, 1, 0.9], [1, 0.5, 0.1, 0.01]])), course(0.1), [0, 1]),
    ],
)
def test_composition_claims(deep, kernel, fails):
    if len(kernel.errors) != len(deep.errors):
        kernel = Course("", SIZES, kernel.errors[: len(deep.errors)])
    assert failing(f07.composition_claims({1: (deep, kernel)})) == fails
    both = f07.composition_claims({1: (course(1.5), course(0.2)), 2: (deep, kernel)})
    assert failing(both) == [i + 2 for i in fails]


def flat(levels, factor=1.0):
    """Three draws whose errors at SIZES are about these levels, within two percent."""
    return Course("network", SIZES, factor * np.array(levels) * np.array([[0.98], [1.0], [1.02]]))


FAST, STEADY, SUDDEN = flat([0.9, 0.4, 0.2, 0.1]), flat([1.2, 1.1, 0.9, 0.8]), flat([1.3, 1.2, 1.05, 0.1])


@pytest.mark.parametrize(
    ("deep", "control", "fails"),
    [
        (FAST, STEADY, []),
        (SUDDEN, STEADY, []),
        (FAST, FAST, [0]),
        (STEADY, FAST, [0]),
        (course(0.5), course(0.2), [0]),  # faster, by less than the threshold
        (flat([20.0, 9.0, 4.0, 2.0]), STEADY, [0]),  # falls, but worse than the mean
        (Course("", SIZES, FAST.errors[[1]]), Course("", SIZES, STEADY.errors[[1]]), [0]),
        (FAST, Course("", SIZES, np.full((3, 4), np.nan)), [0]),
    ],
)
def test_claims_against_a_random_field(deep, control, fails):
    assert failing(f07.field_claims({1: (deep, course(0.1))}, control)) == fails


@pytest.mark.parametrize(
    ("deep", "squares", "fails"),
    [
        (FAST, SUDDEN, []),
        (FAST, STEADY, [1]),  # the control never falls faster
        (FAST, FAST, [0, 1]),
        (SUDDEN, FAST, [0, 1]),
        (STEADY, SUDDEN, [0]),  # never separated
        (flat([0.9, 0.82, 0.75, 0.5]), SUDDEN, [0]),  # by less than the threshold
        (Course("", SIZES, FAST.errors[[1]]), Course("", SIZES, SUDDEN.errors[[1]]), [0, 1]),
    ],
)
def test_claims_against_squares(deep, squares, fails):
    claims = f07.square_claims({1: (deep, course(0.1))}, squares, 256)
    assert failing(claims) == fails
    assert "N = 64 to 256" in claims[0].name
    assert "N = 256 to 512" in claims[1].name


def test_differences_are_paired_and_capped():
    slow = Course("", SIZES, (SIZES / 64) ** -(np.array([[0.1], [0.5], [0.9]])))
    fast = Course("", SIZES, (SIZES / 64) ** -(np.array([[0.6], [1.0], [1.4]])))
    np.testing.assert_allclose(fast.faster(slow), (0.5, 0.5, 0.5), atol=1e-12)
    np.testing.assert_allclose(flat([8.0, 4.0, 2.0, 1.5]).faster(flat([1.5, 1.5, 1.5, 1.5])), 0, atol=1e-12)
    assert fast.within(100, 300).sizes.tolist() == [128, 256]
    np.testing.assert_allclose(fast.within(100, 300).errors, fast.errors[:, 1:3])


KERNELS = {1: lambda r: np.exp(-r), 3: lambda r: (1 + 3**0.5 * r) * np.exp(-(3**0.5) * r)}


def field_and_kernel(alpha, n, n_test, outputs, d_in=4, length=2.0):
    """A field on all samples, (n + n_test, outputs), with variance 1, and the matrix of its kernel in plain terms."""
    task = composition(n, d_in, outputs, seed=0, n_test=n_test)
    field = random_field(task, alpha, length, 0)
    assert torch.equal(field.x, task.x)
    assert torch.equal(field.x_test, task.x_test)
    assert torch.equal(random_field(task, alpha, length, 0).y_test, field.y_test)
    points = torch.cat([task.x, task.x_test]).double().numpy()
    values = torch.cat([field.y, field.y_test]).double().numpy() * outputs**0.5
    return values, KERNELS[alpha](cdist(points, points) / length)


@pytest.mark.parametrize("alpha", [1, 3])
def test_random_fields_have_the_covariance_of_their_kernel(alpha):
    """Off by the error of a sample covariance alone: (k_ii k_jj + k_ij^2) / outputs; a sum of waves is off by more."""
    outputs = 40_000
    values, kernel = field_and_kernel(alpha, 20, 20, outputs)
    standard = (values @ values.T / outputs - kernel) / np.sqrt((1 + kernel**2) / outputs)
    assert np.abs(standard).max() < 4.5
    assert np.abs(values.mean(1)).max() * outputs**0.5 < 4.5


@pytest.mark.parametrize("alpha", [1, 3])
def test_the_best_predictor_of_a_field_has_the_error_of_its_posterior(alpha):
    outputs, n = 4000, 40
    values, kernel = field_and_kernel(alpha, n, 30, outputs)
    weights = np.linalg.solve(kernel[:n, :n], kernel[:n, n:])
    left = values[n:] - weights.T @ values[:n]
    variance = 1 - (kernel[:n, n:] * weights).sum(0)
    standard = ((left**2).mean(1) / variance - 1) / (2 / outputs) ** 0.5
    assert np.abs(standard).max() < 4.5
    assert np.abs(left @ values[:n].T / outputs).max() < 4.5 * (variance.max() / outputs) ** 0.5  # nothing is left


def test_a_field_is_independent_of_the_inputs_of_its_seed():
    """The normal numbers of the field, recovered from its values, are not those of the inputs or of another stream."""
    task = composition(500, 10, 10, seed=3, n_test=0)
    field = random_field(task, 1, 10**0.5, 3)
    x = task.x.double().numpy()
    factor = np.linalg.cholesky(np.exp(-cdist(x, x) / 10**0.5))
    numbers = np.linalg.solve(factor, field.y.double().numpy() * 10**0.5)
    assert numbers.std() == pytest.approx(1, abs=0.05)
    assert np.abs(np.corrcoef(numbers.T, x.T)[:10, 10:]).max() < 4.5 / 500**0.5  # 100 correlations of 500 pairs
    for generator in streams(3, 5):
        drawn = normal(generator, 500, 10).numpy()
        assert abs(np.corrcoef(numbers.ravel(), drawn.ravel())[0, 1]) < 4.5 / 5000**0.5
    other = random_field(task, 1, 10**0.5, 4)
    assert torch.equal(other.x, task.x)
    assert abs(np.corrcoef(other.y.ravel(), field.y.ravel())[0, 1]) < 0.2
    assert not torch.equal(other.y, field.y)


def test_errors_of_kernels_are_those_of_a_plain_solution():
    (found,) = rates.decay_courses(2, (2.0,), (10, 30), (0, 3), 20)
    for row, seed in enumerate((0, 3)):
        task = torus_map(30, 2, (2.0,), seed, n_test=20)
        x, x_test = task.x.numpy(), task.x_test.numpy()
        for column, n in enumerate((10, 30)):

            def kernel(a, b):
                r = 3**0.5 * np.linalg.norm(a[:, None] - b, axis=-1) / 2.0
                return (1 + r) * np.exp(-r)

            predicted = kernel(x_test, x[:n]) @ np.linalg.solve(kernel(x[:n], x[:n]), task.y.numpy()[:n])
            y = task.y_test.numpy()
            expected = ((predicted - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()
            assert found.errors[row, column] == pytest.approx(expected, rel=1e-5)
    target = rates.torus_targets(2, [2.0], 256, torch.Generator().manual_seed(9))[0]
    np.testing.assert_allclose(found.tail, [target.beyond(10), target.beyond(30)], rtol=1e-9)
    assert found.missing == pytest.approx(target.missing / target.beyond(30), rel=1e-6)


def test_the_first_samples_are_those_of_the_task_and_errors_relative():
    task = composition(9, 4, 3, n_test=5)
    part = rates.first(task, 4)
    assert torch.equal(part.x, task.x[:4])
    assert torch.equal(part.y, task.y[:4])
    assert torch.equal(part.x_test, task.x_test)
    assert relative_error(task.y.double().mean(0).expand(9, 3), task.y) == pytest.approx(1)
    assert relative_error(task.y, task.y) == 0
    with pytest.raises(ValueError, match="task: got no test samples"):
        held_out(composition(9, 4, 3, n_test=0))


TINY = {
    "dims": (1, 2),
    "alphas": (2.0, 3.0),
    "sizes": (16, 64),
    "draws": 2,
    "n_test": 50,
    "inners": (2,),
    "d_in": 10,
    "sizes_composition": (20, 40, 80),
    "seeds": (0, 1),
    "turn": 40,
    "depth": 3,
    "width": 8,
    "ridge": 1e-3,
    "steps": 5,
}


def test_a_tiny_run(tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "RIDGES", (1e-3, 0.1))
    monkeypatch.setattr(rates, "SCALES", (1.0, 2.0))
    monkeypatch.setattr(rates, "KERNELS", ("laplace",))
    monkeypatch.setattr("bnrank.tasks.kernel_targets.CUTOFFS", {1: 500, 2: 30})
    assert set(TINY) == set(vars(f07.FIGURE.settings["quick"]))
    outcome = f07.FIGURE.run("quick", tmp_path, progress=False, **TINY)
    assert outcome.error == ""
    assert len(outcome.claims) == 2 + 1 + 2 + 1 + 2
    assert set(outcome.pictures) == set(outcome.captions) == {"kernel-rates", "compositions", "controls"}
    rates_rows, rows, differences = (section.rows for section in outcome.sections)
    assert [(r["d_in"], r["alpha"]) for r in rates_rows] == [(1, 2.0), (1, 3.0), (2, 2.0), (2, 3.0)]
    assert [r["method"] for r in rows] == ["network", "kernel"] * 3
    spans = ["N = 20 to 40", "N = 40 to 80", "N = 20 to 80"]
    assert [(r["control"], r["over"]) for r in differences] == [
        (control, span) for control in ("10 squares", "random field") for span in spans
    ]
    assert all(r["difference"] == pytest.approx(r["exponent"] - r["of the control"]) for r in differences)
    assert rows[-1]["error at N = 80"] == pytest.approx(
        np.prod([best_error(seed, 80) for seed in (0, 1)]) ** 0.5, rel=1e-5
    )


def best_error(seed, n):
    """The error of the best predictor of the field of a tiny run, in plain terms."""
    field = random_field(composition(n, 10, inner=1, seed=seed), 1, 10**0.5, seed)
    x, y, x_test, y_test = (t.double().numpy() for t in (field.x, field.y, field.x_test, field.y_test))
    kernel, across = (np.exp(-cdist(a, x) / 10**0.5) for a in (x, x_test))
    apart = across @ np.linalg.solve(kernel, y) - y_test
    return (apart**2).sum() / ((y_test - y_test.mean(0)) ** 2).sum()
