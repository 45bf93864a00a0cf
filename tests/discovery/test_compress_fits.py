import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bnrank.discovery.compression.fits import dense, equivariant_fit, fit, pair, pointwise_pair
from bnrank.discovery.compression.lowrank import Factoring
from bnrank.discovery.compression.parts import channel_rows, cost, counts, parameters, share
from helpers import normal

from .functions import judge_of


def brute_force_reduced_rank(z1, z2, k, metric):
    """Reduced-rank regression by the book: ordinary least squares, then the SVD of its prediction in the metric."""
    x, y = z1 - z1.mean(0), z2 - z2.mean(0)
    prediction = x @ torch.linalg.lstsq(x, y).solution
    u, _, _ = torch.linalg.svd(prediction @ metric, full_matrices=False)
    return z2.mean(0) + u[:, :k] @ u[:, :k].T @ prediction


@settings(derandomize=True, max_examples=15, deadline=None)
@given(n1=st.integers(1, 6), n2=st.integers(1, 6), k=st.integers(0, 6), seed=st.integers(0, 1000))
def test_without_noise_the_fit_is_reduced_rank_regression(n1, n2, k, seed):
    z1 = normal(60, n1, seed=seed)
    z2 = z1 @ normal(n1, n2, seed=seed + 1) + normal(n2, seed=seed + 2)
    metric = normal(n2, n2, seed=seed + 3) + 3 * torch.eye(n2)
    a, b, c = fit(z1, z2, metric).at(k)
    assert torch.allclose(c + z1 @ a.T @ b.T, brute_force_reduced_rank(z1, z2, k, metric), atol=1e-6)
    assert a.shape[0] == min(k, n1, n2)


def test_tails_are_what_each_rank_leaves_out_in_the_metric():
    z1 = normal(80, 5)
    z2, metric = z1 @ normal(5, 4, seed=1), torch.diag(torch.tensor([1.0, 5.0, 0.1, 2.0]).double())
    fitted = fit(z1, z2, metric)
    for k in range(5):
        a, b, c = fitted.at(k)
        left = ((c + z1 @ a.T @ b.T - z2) @ metric).square().sum(1).mean().sqrt()
        assert float(fitted.tails[k]) == pytest.approx(float(left), abs=1e-8)
    coordinates = (z1 - z1.mean(0)) @ fitted.reading.T
    assert torch.allclose(coordinates.T @ coordinates / 80, torch.eye(4).double(), atol=1e-8)


def test_directions_in_which_the_samples_hardly_vary_are_not_extrapolated_along():
    z1 = normal(40, 10) * torch.tensor([1.0, 1.0] + [1e-5] * 8)
    noisy = z1[:, :1] + 0.01 * normal(40, 1, seed=1)
    a, b, _ = fit(z1, noisy).at(1)
    assert float((b @ a).norm()) < 2
    assert float(torch.linalg.lstsq(z1, noisy).solution.norm()) > 20  # what least squares does


def test_constant_values_give_rank_zero():
    fitted = fit(torch.ones(9, 3).double(), normal(9, 2))
    a, b, c = fitted.at(4)
    assert (a.shape, b.shape, fitted.tails.shape) == ((0, 3), (2, 0), (1,))
    assert torch.allclose(c, normal(9, 2).mean(0))


CONVOLUTIONS = [
    (nn.Conv1d(2, 3, 3, padding=1), (2, 7)),
    (nn.Conv2d(2, 3, 3, stride=2, padding=1, padding_mode="circular"), (2, 6, 6)),
    (nn.Conv2d(2, 3, 2, dilation=2, bias=False), (2, 5, 6)),
    (nn.Linear(6, 4), (6,)),
]


@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS)
def test_dense_is_the_matrix_of_the_layer(layer, shape):
    layer = layer.double()
    x = normal(4, *shape)
    out = layer(x).flatten(1)
    rows = normal(5, out.shape[1], seed=3)
    weight, shift = dense(layer, rows, shape)
    assert torch.allclose(x.flatten(1) @ weight.T + shift, out @ rows.T, atol=1e-10)


@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS)
def test_pairs_of_full_rank_are_the_layer_itself(layer, shape):
    layer = layer.double()
    x = normal(200, *shape)
    with torch.no_grad():
        out = layer(x)
        flat = out.flatten(1)
        whole = nn.Sequential(*pair(layer, shape, tuple(out.shape[1:]), fit(flat, flat), flat.shape[1]))
        rows = out if out.ndim == 2 else out.movedim(1, -1).reshape(-1, out.shape[1])
        by_place = nn.Sequential(*pointwise_pair(layer, fit(rows, rows), rows.shape[1]))
        assert torch.allclose(whole(x), out, atol=1e-6)
        assert sum(isinstance(part, nn.Linear) for part in whole) == 1  # smaller than two
        assert torch.allclose(by_place(x), out, atol=1e-6)


def test_a_circular_convolution_with_few_frequencies_is_found_from_few_samples():
    """12 samples of 3 x 6 x 6 values: far too few for a map between all pixels, enough frequency by frequency."""
    x = normal(12, 3, 6, 6)
    first = nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular").double()
    matrix = normal(3, 3, seed=4)

    def planted(z):  # frequencies 0 and (0, +-1), all channels mixed
        waves = torch.fft.fft2(z)
        keep = torch.zeros_like(waves)
        keep[..., 0, 0], keep[..., 0, 1], keep[..., 0, 5] = waves[..., 0, 0], waves[..., 0, 1], waves[..., 0, 5]
        return torch.einsum("oc,nchw->nohw", matrix, torch.fft.ifft2(keep).real) + 1.0

    with torch.no_grad():
        z1, fresh = first(x), first(normal(50, 3, 6, 6, seed=5))
    fitted = equivariant_fit([first, nn.ReLU(), first], z1, planted(z1))
    a, b, c = fitted.at(3 + 2 * 3)
    assert fitted.reading.shape[0] == 9 or float(fitted.tails[9]) < 1e-5 * float(fitted.tails[0])
    found = (c + fresh.flatten(1) @ a.T @ b.T).reshape(fresh.shape)
    assert float((found - planted(fresh)).norm() / planted(fresh).norm()) < 1e-4
    a, b, c = fitted.at(0)
    left = (c - planted(z1).flatten(1)).square().sum(1).mean().sqrt()
    assert float(left) == pytest.approx(float(fitted.tails[0]), rel=1e-4)


@pytest.mark.parametrize(
    "part", [nn.Conv1d(2, 2, 3, padding=1), nn.Conv1d(2, 2, 1, stride=2), nn.MaxPool1d(2), nn.Conv1d(2, 2, 3)]
)
def test_what_does_not_commute_with_translations_is_not_fitted_by_frequency(part):
    assert equivariant_fit([part], normal(8, 2, 6), normal(8, 2, 6)) is None


LAYERS = [
    (nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 3)), (12,)),
    (nn.Sequential(nn.Conv1d(4, 12, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(60, 3)), (4, 5)),
]


@pytest.mark.parametrize("rule", ["cost", "parameters"])
@pytest.mark.parametrize(("net", "shape"), LAYERS)
def test_a_layer_is_cut_to_the_rank_of_least_cost_and_squared_change(net, shape, rule):
    """Against all ranks built one by one; their changes are those to first order, in the metric of the output."""
    parts, x = tuple(part.double() for part in net), normal(80, *shape)
    with torch.no_grad():
        sizes = (0.6 ** torch.arange(len(parts[0].weight))).reshape(-1, *[1] * len(shape))
        parts[0].weight.copy_(sizes * normal(*parts[0].weight.shape, seed=1))
        parts[-1].weight.copy_(normal(*parts[-1].weight.shape, seed=2))
        for part in (parts[0], parts[-1]):  # were drawn when the file was read
            part.bias.copy_(0.3 * normal(*part.bias.shape, seed=3))
        outputs = net(x)
    flat = lambda value: value.flatten(1)  # noqa: E731
    judge = judge_of((x, flat, outputs), (x[:3], flat, outputs[:3]), outputs)
    whole, metric = counts(parts, x), judge.metrics(parts)[0]
    rows = channel_rows(parts[0], parts[0](x)).detach()
    fitted = fit(rows, rows, metric, 1e-10)
    factoring, seen = Factoring(judge, net, ["0"], whole), set()

    def price_of(some):
        return cost(some, x, whole) if rule == "cost" else share((sum(map(parameters, some)), 0, 0), whole)

    for threshold in torch.logspace(-4, 1, 101).tolist():
        sums = {None: price_of(parts)}
        for k in range(1, len(fitted.reading) + 1):
            made = pointwise_pair(parts[0], fitted, k)
            sums[k] = price_of((*made, *parts[1:])) + float(fitted.tails[k] / judge.scale / threshold) ** 2
        best = min(sums, key=sums.get)
        _, ranks = factoring.at(threshold, rule)
        assert dict(ranks).get("0") == best
        seen.add(best)
    assert len(seen) > 2
    assert None in seen


def test_values_whose_squares_are_zero_have_no_map():
    found = fit(1e-200 * normal(30, 4), normal(30, 3, seed=1))
    assert len(found.reading) == 0
    assert found.tails.tolist() == [0.0]
