"""Two classes that a plane separates, and two digits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnrank import tasks
from bnrank.tasks import Task
from bnrank.tasks.images import MissingDataError


@settings(deadline=None, derandomize=True)
@given(n=st.integers(2, 40), d=st.integers(1, 8), margin=st.floats(1e-3, 10), seed=st.integers(0, 2**31))
def test_the_direction_separates_with_the_margin(n, d, margin, seed):
    task = tasks.separable(n, d, margin, seed, n_test=n)
    u = torch.tensor(task.settings["direction"], dtype=torch.float64)
    assert float(u.norm()) == pytest.approx(1, rel=1e-12)
    assert (task.x.shape, task.y.shape, task.loss, task.d_out) == ((n, d), (n, 1), "logistic", 1)
    for x, y in ((task.x, task.y), (task.x_test, task.y_test)):
        assert bool((y[:, 0] * (x.double() @ u) >= margin - 1e-6 * x.double().norm(dim=1)).all())
        assert abs(float(y.sum())) <= 1


def test_off_the_direction_samples_are_normal():
    task = tasks.separable(20000, 3, 2.0, seed=1)
    u = torch.tensor(task.settings["direction"], dtype=torch.float64)
    along = task.x.double() @ u
    across = task.x.double() - torch.outer(along, u)
    projection = torch.eye(3, dtype=torch.float64) - torch.outer(u, u)
    torch.testing.assert_close(across.T @ across / 20000, projection, rtol=0, atol=0.03)
    beyond = along.abs() - 2.0
    assert float(beyond.min()) > -1e-5
    assert float(beyond.mean()) == pytest.approx((2 / torch.pi) ** 0.5, rel=0.02)  # of |z|
    assert float((task.y[:, 0] * across[:, 0]).mean()) == pytest.approx(0, abs=0.03)


def test_streams_are_separate_and_the_global_generator_untouched():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    one, more = tasks.separable(10, 4, seed=3), tasks.separable(10, 4, seed=3, n_test=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.x, more.x)
    assert one.x_test is None
    assert one.settings["direction"] == more.settings["direction"]
    assert not torch.equal(one.x, tasks.separable(10, 4, seed=4).x)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n": 1}, ValueError, "n: got 1"),
        ({"d": 0}, ValueError, "d: got 0"),
        ({"margin": 0.0}, ValueError, "margin: got 0"),
        ({"seed": 1.5}, TypeError, "seed: got 1.5"),
        ({"n_test": -1}, ValueError, "n_test: got -1"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        tasks.separable(**arguments)


@pytest.fixture
def small_set(monkeypatch):
    """Only the digits that come with scikit-learn, wherever this runs."""

    def missing(*args, **kwargs):
        raise MissingDataError("none here")

    monkeypatch.setattr(tasks.images, "mnist", missing)


@pytest.mark.usefixtures("small_set")
@pytest.mark.parametrize("pair", [(0, 1), (8, 3)])
def test_two_digits_are_those_of_the_whole_task(pair):
    whole, task = tasks.digits(seed=2), tasks.two_digits(*pair, seed=2)
    for x, y, images, labels in (
        (task.x, task.y, whole.x, whole.y),
        (task.x_test, task.y_test, whole.x_test, whole.y_test),
    ):
        wanted = {-1: images[labels == pair[0]], 1: images[labels == pair[1]]}  # standardized over all ten
        for label, of_label in wanted.items():
            mine = x[y[:, 0] == label]
            assert sorted(map(tuple, mine.tolist())) == sorted(map(tuple, of_label.tolist()))
    assert (task.name, task.loss, task.x.dtype) == (f"digits {pair[0]} and {pair[1]}", "logistic", torch.float32)


@pytest.mark.usefixtures("small_set")
def test_fewer_images_are_the_first_of_more():
    few, many = (tasks.two_digits(3, 8, images=k, images_test=k // 2, seed=1) for k in (20, 50))
    assert torch.equal(few.x, many.x[:20])
    assert torch.equal(few.y_test, many.y_test[:10])
    assert set(few.y.flatten().tolist()) == {-1.0, 1.0}
    assert tasks.two_digits(3, 8, images_test=0).x_test is None
    assert tasks.two_digits(3, 8, images=20, seed=1).settings == {"a": 3, "b": 8, "images": 20, "seed": 1}


def test_two_digits_of_mnist_where_it_is(monkeypatch):
    x = torch.arange(40.0).reshape(10, 4)
    whole = Task(x, torch.tensor([0, 1, 2, 1, 0, 0, 1, 5, 9, 1]), loss="cross_entropy", name="mnist", classes=10)
    monkeypatch.setattr(tasks.images, "mnist", lambda *args, **kwargs: whole)
    task = tasks.two_digits(1, 0, images=None)
    assert task.name == "mnist 1 and 0"
    pairs = zip(task.x[:, 0].tolist(), task.y[:, 0].tolist(), strict=True)
    assert sorted(pairs) == [(0, 1), (4, -1), (12, -1), (16, 1), (20, 1), (24, -1), (36, -1)]


@pytest.mark.usefixtures("small_set")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"a": 3, "b": 3}, ValueError, "a, b: got 3 and 3, expected two different digits"),
        ({"a": 10}, ValueError, "a, b: got 10 and 1"),
        ({"a": "0"}, TypeError, "a: got '0'"),
        ({"images": 0}, ValueError, "images: got 0"),
        ({"images": 5000}, ValueError, "images: got 5000, expected at most the"),
        ({"images_test": -1}, ValueError, "images_test: got -1"),
    ],
)
def test_bad_digits(arguments, error, message):
    with pytest.raises(error, match=message):
        tasks.two_digits(**arguments)
