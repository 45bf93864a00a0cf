"""F3: its claims on planted runs, and a tiny run."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from bnrank.figures.f03_autoencoders import computation as autoencoders
from bnrank.figures.f03_autoencoders import figure as f03
from bnrank.figures.f03_autoencoders.computation import (
    Curves,
    Denoising,
    Images,
    Network,
    OfCurve,
    OfImages,
    denoising,
)
from bnrank.figures.f03_autoencoders.few_images import FewImages, OfFew, few_runs, widest_gaps
from bnrank.figures.f03_autoencoders.linear_projections import linear_projections
from bnrank.networks.mlp import MLP, from_layers
from bnrank.tasks import Task
from bnrank.training import Adam
from helpers import failing

CURVE = {"ratio": "after / before", "ones": "rank 1", "twos": "rank 2", "defect": "||J^2 - J|| / ||J||"}
IMAGE = {"ratio": "after / before, unseen", "ratio_seen": "trained on", "rank": "effective rank"}
IMAGE |= {"kept": "noise kept", "unexplained": "unexplained, trained on"}


def of_curve(**changes):
    planted = {"curve": 0, "net": 0, "depth": 20, "ratio": 0.05, "ones": 1.0, "twos": 0.0, "defect": 0.01}
    planted |= {"unexplained": 1e-3, **changes}
    return OfCurve({CURVE.get(name, name): value for name, value in planted.items()}, None, None, None)


def flat(**changes):
    return of_curve(**{"depth": 2, "ratio": 0.7, "ones": 0.0, "twos": 1.0, "defect": 0.2, **changes})


@pytest.mark.parametrize(
    ("deep", "shallow", "fails"),
    [
        ([{}] * 5, [{}] * 5, []),
        ([{}] * 4 + [{"ratio": 0.9, "ones": 0.0, "defect": 0.3}], [{}] * 4 + [{"ratio": 0.2, "twos": 0.0}], []),
        ([{}] * 4 + [{"unexplained": 0.02}], [{}] * 5, [0]),
        ([{}] * 5, [{}] * 4 + [{"unexplained": 0.02}], [0]),
        ([{}] * 3 + [{"ratio": 0.26}] * 2, [{}] * 5, [1]),
        ([{}] * 5, [{}] * 3 + [{"ratio": 0.24}] * 2, [2]),
        ([{}] * 5, [{}] * 2 + [{"ratio": 0.4}] * 3, [3]),
        ([{}] * 3 + [{"ones": 0.89}] * 2, [{}] * 5, [4, 6]),
        ([{}] * 5, [{}] * 3 + [{"twos": 0.89}] * 2, [5]),
        ([{}] * 3 + [{"defect": 0.2}] * 2, [{}] * 5, [6]),
        ([{}] * 3 + [{"defect": float("nan")}] * 2, [{}] * 5, [6]),
        ([{"ones": 0.0}] * 5, [{}] * 5, [4, 6]),
        ([{}] * 4 + [{"unexplained": float("nan")}], [{}] * 5, [0]),
        ([{"ratio": float("nan")}] * 5, [{"ratio": float("nan")}] * 5, [1, 3]),
    ],
)
def test_curve_claims(deep, shallow, fails):
    claims = f03.curve_claims([of_curve(**change) for change in deep], [flat(**change) for change in shallow])
    assert failing(claims) == fails


def of_images(**changes):
    planted = {"net": 0, "depth": 6, "ratio": 0.6, "ratio_seen": 0.5, "rank": 30.0, "kept": 0.4, "unexplained": 0.1}
    planted |= {"unexplained, unseen": 0.2, **changes}
    return OfImages({IMAGE.get(name, name): value for name, value in planted.items()}, None, None, [])


def flat_images(**changes):
    return of_images(**{"depth": 2, "ratio": 1.0, "ratio_seen": 0.9, "rank": 150.0, "kept": 0.9, **changes})


@pytest.mark.parametrize(
    ("deep", "shallow", "fails"),
    [
        ({}, {}, []),
        ({"unexplained": 0.3}, {}, [0]),
        ({}, {"unexplained": 0.3}, [0]),
        ({"ratio_seen": 0.8}, {}, [1]),
        ({"ratio": 0.8}, {}, [2]),
        ({}, {"ratio": 0.7}, [3]),
        ({"kept": 0.7}, {}, [4]),
        ({}, {"kept": 0.5}, [4]),
        ({"rank": 80.0}, {}, [5]),
        ({}, {"rank": 50.0}, [5]),
        ({"ratio": float("nan")}, {}, [2]),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_image_claims(deep, shallow, fails, first):
    """One network of two decides, whichever it is."""
    both = [[of_images(**deep), of_images()], [flat_images(**shallow), flat_images()]]
    assert failing(f03.image_claims(*(runs if first else runs[::-1] for runs in both))) == fails


def test_images_are_in_units_of_white_and_centered(monkeypatch):
    x = torch.rand(20, 9)
    task = Task(x[:15], torch.arange(15) % 3, x[15:], torch.arange(5) % 3, loss="cross_entropy")
    asked = {}

    def load(n, n_test, seed, standardize):
        asked.update(n=n, n_test=n_test, seed=seed, standardize=standardize)
        return task

    monkeypatch.setattr(autoencoders, "handwritten_digits", load)
    found, mean = autoencoders.image_task(Images(15, 5, 3))
    assert asked == {"n": 15, "n_test": 5, "seed": 3, "standardize": False}
    torch.testing.assert_close(mean, x[:15].mean(0))
    torch.testing.assert_close(found.x + mean, x[:15])
    torch.testing.assert_close(found.y_test + mean, x[15:])
    assert found.loss == "mse"


def of_few(**changes):
    names = {"ratio": "after / before, trained on", "linear": "best projection", "rank": "effective rank"}
    planted = {"ratio": 0.15, "linear": 0.35, "gap": 20.0, "rank": 4.0, **changes}
    return OfFew({names.get(name, name): value for name, value in planted.items()}, None, None)


NAN = float("nan")


@pytest.mark.parametrize(
    ("deep", "shallow", "fails"),
    [
        ([{}] * 5, [{}] * 5, []),
        ([{}] * 4 + [{"ratio": 0.3, "gap": 1.2}], [{"ratio": 0.1}] * 5, []),
        ([{}] * 3 + [{"ratio": 0.21}] * 2, [{}] * 5, [0]),
        ([{}] * 4 + [{"linear": 0.19}], [{}] * 5, [1]),
        ([{}] * 3 + [{"gap": 0.9 * f03.GAP}] * 2, [{}] * 5, [2]),
        ([{}] * 5, [{}] * 4 + [{"gap": 1.1 * f03.NO_GAP}], [3]),
        ([{}] * 4 + [{"rank": 6.0}], [{}] * 5, [4]),
        ([{}] * 5, [{}] * 4 + [{"rank": 15.0}], [4]),
        ([{"ratio": NAN, "gap": NAN, "linear": NAN, "rank": NAN}] * 5, [{"gap": NAN}] * 5, [0, 1, 2, 3, 4]),
    ],
)
def test_few_claims(deep, shallow, fails):
    flat_few = [of_few(**{"gap": 1.2, "rank": 20.0} | change) for change in shallow]
    claims = f03.few_claims([of_few(**change) for change in deep], flat_few)
    assert failing(claims) == fails
    assert "(shallow networks: 1)" in str(claims[0].measured)  # the distance does not tell them apart


def test_the_widest_gap_is_among_values_that_count():
    values = torch.tensor([[4.0, 2.0, 0.5, 0.3, 1e-9], [1.0, 0.9, 0.8, 0.01, 1e-12], [3.0, 0.0, 0.0, 0.0, 0.0]])
    gaps, places = widest_gaps(values.double())
    assert places.tolist() == [2, 3, 1]  # 0.3 is too small to count
    np.testing.assert_allclose(gaps[:2], [4.0, 80.0], rtol=1e-6)
    assert gaps[2] > 1e10


def test_denoising_by_a_projection_and_by_a_scaling():
    """A projection takes away what is off the line and keeps the rest; at x = 0 a scaling scales all distances."""
    x = torch.zeros(400, 2).double()
    x[:, 0] = torch.linspace(-1, 1, 400)
    found = denoising(from_layers([torch.tensor([[1.0, 0], [0, 0]])]), x, 0.2, lambda points: points[:, 1].abs())
    noise = found.noisy - x
    assert float(noise.std()) == pytest.approx(0.2, rel=0.1)
    assert found.ratio == 0
    torch.testing.assert_close(found.before, noise[:, 1].abs())
    torch.testing.assert_close(found.kept, noise[:, 0].abs() / noise.norm(dim=1))
    found = denoising(from_layers([0.25 * torch.eye(3)]), torch.zeros(50, 3), 0.5)
    torch.testing.assert_close(found.after, 0.25 * found.before)
    torch.testing.assert_close(found.kept, torch.full((50,), 0.25).double())
    points, before, after = torch.zeros(4, 1), torch.tensor([1.0, 2.0, 4.0, 100.0]), torch.tensor([50.0, 1.0, 3.0, 1.0])
    assert Denoising(points, points, before, after, before).ratio == pytest.approx(2 / 3)  # halfway between two


def test_the_noise_is_not_what_a_network_of_the_same_seed_was_drawn_from():
    """Noise along the rows of the weights would come out larger than noise of any other seed."""
    net = MLP([40, 60, 40], seed=autoencoders.NOISE_SEED)
    noise = denoising(net, torch.zeros(60, 40), 1.0).noisy
    rows = net.weights[0].detach().double()
    assert abs(float(((noise * rows).sum(1) / (noise.norm(dim=1) * rows.norm(dim=1))).mean())) < 0.1
    assert net.weights[0].dtype == torch.float32


def test_linear_projections_onto_the_span_of_the_data():
    """Images in two dimensions of 50, noise of length e: two components leave sqrt(2 / 50) e, one leaves half of x."""
    draws = np.random.default_rng(0).standard_normal
    basis = np.linalg.qr(draws((50, 2)))[0].T
    x, unseen = (torch.from_numpy(100 * draws((400, 2)) @ basis) for _ in range(2))
    one, two = linear_projections(x, unseen, 1.0)
    assert (one["components"], two["components"]) == (1, 2)
    assert two["sqrt(k / d)"] == 0.2
    assert two["unexplained"] == pytest.approx(0, abs=1e-9)
    assert two["after / before"] == pytest.approx(1.18 / 50**0.5, rel=0.1)  # 1.18: median length of two normal numbers
    assert one["unexplained"] == pytest.approx(0.5, abs=0.1)
    assert one["after / before"] > 3


def test_few_runs_on_digits(tmp_path, monkeypatch):
    """What is measured of networks of a few small digits, against its definitions."""
    monkeypatch.setenv("BNRANK_DATA", str(tmp_path))
    few = FewImages(images=12, unseen=7, seeds=(3, 5), jacobians=4)
    first, second = few_runs(tmp_path, False, few, Network(depth=3, width=10, init="pytorch", steps=40, ridge=1e-3))
    task, _ = few.task(5)
    assert (task.n, second.row["seed"], len(first.spectra), len(second.noise.before)) == (12, 5, 4, 12)
    run = autoencoders.Run.open(tmp_path / "few-images-depth-3-seed-5")
    net, x, y = run.network(0).double(), task.x.double(), second.noise.noisy
    with torch.no_grad():
        once = net(y)
        twice = net(once)
        cost = float((net(x) - x).square().sum())
    before, after = (y - x).norm(dim=1), (once - x).norm(dim=1)
    assert second.row["after / before, trained on"] == pytest.approx(float(after.quantile(0.5) / before.quantile(0.5)))
    again = (twice - once).norm(dim=1) / (once - y).norm(dim=1)
    assert second.row["applied again"] == pytest.approx(float(again.quantile(0.5)), rel=1e-4)
    assert second.row["unexplained, trained on"] == pytest.approx(cost / float(x.square().sum()), rel=1e-4)
    norm = sum(float(p.detach().square().sum()) for p in net.parameters())
    assert second.row["loss"] == pytest.approx(cost / 12 + 1e-3 * norm, rel=1e-4)  # its own ridge
    assert first.row["loss"] != second.row["loss"]


def test_the_start_of_pytorch(tmp_path):
    """Within 1 / sqrt(inputs), biases too; the usual start has no biases and larger weights."""
    task, _ = FewImages(images=12, unseen=7).task(0)
    still = Network(depth=2, width=10, init="pytorch", steps=1).train(task, tmp_path, False, optimizer=Adam(1e-12))
    for layer in still.network(0).layers:
        bound = layer.in_features**-0.5
        assert float(layer.weight.detach().abs().max()) == pytest.approx(bound, rel=0.05)
        assert 0 < float(layer.bias.detach().abs().max()) <= bound


TINY = {
    "curves": Curves(curves=(0, 1), nets=2, samples=30, corners=10, noise=0.07),
    "curve_deep": Network(depth=4, width=8, init=0.4, steps=30),
    "curve_shallow": Network(depth=2, width=8, init="he", steps=30),
    "shown": (1,),
    "images": Images(images=60, unseen=12, jacobians=3),
    "images_deep": Network(depth=3, width=10, init=0.1, steps=20),
    "images_shallow": Network(depth=2, width=20, init="he", steps=20),
    "few": FewImages(images=10, unseen=5, seeds=(0, 1), jacobians=2),
    "few_deep": Network(depth=3, width=10, init="pytorch", steps=20),
    "few_shallow": Network(depth=2, width=10, init="pytorch", steps=20),
}


def test_a_tiny_run(tmp_path, monkeypatch):
    monkeypatch.setenv("BNRANK_DATA", str(tmp_path))
    for settings in f03.FIGURE.settings.values():
        assert set(TINY) == set(vars(settings))
        assert set(settings.shown) <= set(settings.curves.curves)
    outcome = f03.FIGURE.run("quick", tmp_path, progress=False, **TINY)
    assert outcome.error == ""
    assert len(outcome.claims) == 13  # without MNIST
    assert set(outcome.pictures) == set(outcome.captions) == {"arrows", "digits", "images", "noise-and-rank"}
    assert [len(section.rows) for section in outcome.sections] == [8, 4]
    rows = outcome.sections[0].rows
    assert [(row["depth"], row["curve"], row["net"]) for row in rows[:5]] == [
        (4, 0, 0),
        (4, 0, 1),
        (4, 1, 2),
        (4, 1, 3),
        (2, 0, 0),
    ]


def test_few_images_are_run_where_mnist_is(tmp_path, monkeypatch):
    """Small digits in the place of MNIST, which tests do not require."""
    small = autoencoders.handwritten_digits

    def load(*args, **options):
        return replace(small(*args, **options), name="mnist")

    monkeypatch.setenv("BNRANK_DATA", str(tmp_path))
    monkeypatch.setattr(autoencoders, "handwritten_digits", load)
    tiny = {**TINY, "curves": Curves(curves=(1,), nets=1, samples=30, corners=10)}
    outcome = f03.make(replace(f03.QUICK, **tiny), tmp_path, False)
    assert len(outcome.claims) == 18
    assert {"few-digits", "few-images"} < set(outcome.pictures) == set(outcome.captions)
    networks, linear = outcome.sections[2:]
    assert [(row["depth"], row["seed"]) for row in networks.rows] == [(3, 0), (3, 1), (2, 0), (2, 1)]
    assert [row["images"] for row in linear.rows] == [10, 1000, 1500]
    assert [row["components"] <= 9 for row in linear.rows] == [True, False, False]


def test_what_is_measured_of_a_run_against_its_definitions(tmp_path, monkeypatch):
    curves = Curves((3,), nets=1, samples=40, corners=10, noise=0.05)
    monkeypatch.setattr(autoencoders, "RTOL", 0.5)  # between the values of s_2 / s_1 that are found
    (run,) = autoencoders.curve_runs(tmp_path, False, curves, Network(depth=3, width=10, init="he", steps=60))
    row = run.row
    x = run.task.x_test.double()
    net = run.network.double()
    noise = 0.05 * torch.from_numpy(np.random.default_rng(1).standard_normal((40, 2)))
    dense = torch.linspace(0, 1, 501, dtype=torch.float64)[:, None]
    line = torch.cat([(1 - dense) * a + dense * b for a, b in itertools.pairwise(run.corners)])
    with torch.no_grad():
        after = torch.cdist(net(x + noise), line).min(1).values.median()
    before = torch.cdist(x + noise, line).min(1).values.median()
    assert row["after / before"] == pytest.approx(float(after / before), rel=0.02)
    jacobians = torch.stack([torch.func.jacrev(net)(point) for point in x]).detach()
    values = torch.linalg.svdvals(jacobians)
    assert row["rank 2"] == pytest.approx(float((values[:, 1] > 0.5 * values[:, 0]).double().mean()))
    assert row["rank 1"] == pytest.approx(1 - row["rank 2"])
    assert 0 < row["rank 1"] < 1
    defects = (jacobians @ jacobians - jacobians).norm(dim=(1, 2)) / jacobians.norm(dim=(1, 2))
    assert row["||J^2 - J|| / ||J||"] == pytest.approx(float(defects.median()), rel=1e-6)
    x = run.task.x.double()
    cost = float((net(x) - x).detach().square().sum(1).mean())
    assert row["unexplained"] == pytest.approx(cost / float(x.square().sum(1).mean()), rel=1e-3)
