import signal
from dataclasses import replace

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnrank.discovery.estimators import learning
from bnrank.discovery.estimators.bottleneck import InputDirections, coordinates_of, project, truncate
from bnrank.discovery.estimators.budget import budget_for
from bnrank.discovery.estimators.counts import Trial, by_group, count_of, smallest_within_error, standard_error
from bnrank.discovery.estimators.learning import polish
from bnrank.discovery.estimators.linear_maps import best_linear, linear_map
from bnrank.discovery.estimators.path import Path, center_logits, finished, folds_of, train_members
from bnrank.discovery.estimators.splits import Splits
from bnrank.discovery.estimators.tables import Data, apart, scaling_of
from bnrank.networks import MLP
from bnrank.networks.mlp import from_layers
from bnrank.training import Record, train


def narrow(k, seed=0):
    """A network whose third layer has rank k."""
    net = MLP([6, 12, 12, 12, 5], seed=seed, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        u, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((12, k), (k, 12)))
        net.weights[2].copy_(u @ v / 12)
        net.biases[2].copy_(torch.randn(12, generator=generator))
    return net


def rows(n=200, d=6, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_network_cut_at_its_rank_is_unchanged_and_below_it_is_not(k):
    cut = truncate(narrow(k), rows(), 5)
    assert cut.change[k] < 1e-20
    assert cut.change[k - 1] > 1e-3
    assert cut.layers[k] == 3
    assert np.all(cut.change[k:] < 1e-20)


def test_held_out_losses_are_those_of_the_projected_network():
    net, x, other = MLP([6, 12, 12, 5], seed=1, dtype=torch.float64), rows(), rows(50, seed=1)
    y = np.random.default_rng(0).normal(size=(50, 5))
    cut = truncate(net, x, 4, (other, y))
    for k in range(5):
        slow = project(net, x, cut.layers[k], k)(other).detach().numpy()
        assert np.allclose(cut.errors[k], np.square(slow - y).sum(axis=1))
    full = MLP([6, 12, 12, 5], seed=1, dtype=torch.float64)(x).detach()
    slow = project(net, x, cut.layers[2], 2)(x).detach()
    assert cut.change[2] == pytest.approx(float((slow - full).square().sum(1).mean()))


@pytest.mark.parametrize("layer", [1, 2, 3, 4])
def test_encoder_and_decoder_are_the_projected_network(layer):
    net, x = narrow(2), rows()
    made = coordinates_of(project(net, x, layer, 2), x, layer, 2)
    z = made.encoder(x)
    assert torch.allclose(made.decoder(z), project(net, x, layer, 2)(x), atol=1e-9)
    assert torch.allclose(z.T @ z / len(z), torch.eye(2, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(z.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_every_coordinate_grows_with_the_input_it_is_most_correlated_with(seed):
    x = rows()
    z = coordinates_of(narrow(4, seed), x, 3, 4).encoder(x).detach().numpy()
    correlations = np.corrcoef(z.T, x.numpy().T)[:4, 4:]
    assert np.all(correlations[range(4), np.abs(correlations).argmax(axis=1)] > 0)


def test_a_coordinate_that_does_not_vary_is_zero():
    net, x = narrow(1), rows()
    made = coordinates_of(net, x, 3, 2)
    z = made.encoder(x).detach()
    assert np.allclose(np.sort(z.std(0, unbiased=False).numpy()), [0, 1], atol=1e-6)
    assert torch.allclose(made.decoder(z), net(x), atol=1e-9)


def test_influence_is_the_mean_derivative_of_the_decoder():
    net, x = narrow(2), rows()
    made = coordinates_of(net, x, 3, 2)
    z = made.encoder(x).detach()
    jacobians = torch.stack([torch.autograd.functional.jacobian(made.decoder, v) for v in z])
    gram = torch.einsum("noi,noj->ij", jacobians, jacobians) / len(z)
    assert np.allclose(made.influence, gram.diagonal().sqrt().numpy())
    assert abs(float(gram[0, 1])) < 1e-9 * float(gram[0, 0])


def test_inputs_that_a_network_does_not_see_are_not_counted():
    net = MLP([6, 12, 12, 1], seed=0, dtype=torch.float64)
    with torch.no_grad():
        net.weights[0].copy_(net.weights[0][:, :3] @ torch.randn(3, 6, dtype=torch.float64))
    found = InputDirections(net, rows())
    assert np.all(found.spectrum[:3] > 1e-3)
    assert np.all(found.spectrum[3:] < 1e-6)
    assert torch.allclose(net(found.project(rows(), 3)), net(rows()))
    assert not torch.allclose(net(found.project(rows(), 2)), net(rows()), atol=1e-3)


def test_combinations_of_inputs_that_hardly_vary_come_last_whatever_the_network_does_along_them():
    x = rows(d=3)
    x[:, 2] = x[:, 1] + 1e-6 * x[:, 2]
    net = from_layers([torch.tensor([[1.0, 0.0, 0.0], [0.0, 50.0, -50.0]]).double(), torch.ones(1, 2).double()],
                      [torch.zeros(2), torch.zeros(1)])  # fmt: skip
    found = InputDirections(net, x)
    assert torch.allclose(net(found.project(x, 1)), net(x), atol=1e-3)


def test_copies_of_rows_leave_mean_and_standard_error_as_they_are():
    errors = np.random.default_rng(0).normal(size=(3, 40))
    groups = np.tile(np.arange(40), 4)
    once = by_group(np.tile(errors, 4), groups)
    assert np.allclose(once, errors)
    uneven = np.r_[groups, np.zeros(40, dtype=int)]
    values = np.random.default_rng(1).normal(size=200)
    grouped = by_group(values, uneven)
    deviations = [(values - values.mean())[uneven == g].sum() for g in range(40)]
    assert grouped.mean() == pytest.approx(values.mean())
    assert standard_error(grouped) == pytest.approx(np.sqrt(np.square(deviations).sum()) / 200)


def test_classes_are_spread_evenly_over_folds():
    labels = np.repeat([0, 1, 2], [60, 27, 3])
    folds = folds_of(np.arange(90), 3, 0, labels)
    for number in range(3):
        assert np.bincount(labels[folds == number]).tolist() == [20, 9, 1]


def test_held_out_outputs_have_no_say_in_what_they_are_compared_to():
    data = Data(np.zeros((4, 1)), np.array([[1.0], [3.0], [10.0], [20.0]]))
    known, held_out = apart(data, np.array([True, True, False, False]), np.array([False, False, True, True]))
    assert known.y.ravel().tolist() == [-1, 1]
    assert held_out.y.ravel().tolist() == [8, 18]


def test_losses_of_linear_maps_against_their_networks():
    generator = np.random.default_rng(0)
    x, y, labels = generator.normal(size=(60, 4)), generator.normal(size=(60, 3)), generator.integers(3, size=60)
    for classes, outputs in ((0, y), (3, labels)):
        map_ = linear_map(x, outputs, 0.01, classes)
        losses = map_.losses(x, outputs, 2, classes)
        for rank in range(3):
            values = map_.network(rank)(torch.from_numpy(x)).detach().numpy()
            slow = (
                np.square(values - y).sum(1)
                if not classes
                else -scipy.special.log_softmax(values, 1)[range(60), labels]
            )
            assert np.allclose(losses[rank], slow)


@pytest.mark.parametrize(
    ("rank", "gain", "kind"), [(1, 0.1, "linear"), (1, 0.2, "network"), (0, 0.2, "constant"), (0, 0.3, "network")]
)
def test_a_network_must_be_better_than_a_line_by_one_standard_error_and_than_nothing_by_two(
    monkeypatch, rank, gain, kind
):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 3))
    data = Data(x, rank * x[:, :1] @ np.ones((1, 2)) + 0.1 * generator.normal(size=(60, 2)))

    def explore(some, splits, groups, level, plan, first):
        path = Path(some, splits, groups)
        errors = best_linear(some.x, some.y, splits, 2).errors[rank] - gain + np.tile([1.0, -1.0], 30)
        path.errors[0.01] = np.vstack([level + 1, errors, errors])  # standard error of the difference: 0.13
        return path

    monkeypatch.setattr(learning, "explore", explore)
    monkeypatch.setattr(learning, "of_folds", lambda *arguments, **named: [])
    found = learning.investigate(data, budget_for(60, 3, 2, 2))
    assert (found.kind, found.number) == (kind, 0 if kind == "constant" else 1)


def test_logits_have_mean_zero_and_the_same_probabilities():
    net, x = MLP([6, 12, 3], seed=0, dtype=torch.float64), rows()
    before = net(x).softmax(1).detach()
    center_logits(net)
    assert torch.allclose(net(x).softmax(1), before)
    assert float(net(x).detach().mean(1).abs().max()) < 1e-12
    data = Data(x.numpy(), np.arange(200) % 3, 3)
    trained = train_members(data, [(1e-3, 0)], replace(budget_for(60, 6, 3, 2), steps=5))[0].network
    assert float(trained(x.float()).detach().mean(1).abs().max()) < 1e-5


def test_an_interrupted_training_is_passed_on(monkeypatch):
    task = Data(np.ones((4, 2)), np.ones((4, 1))).task()

    class Stop:
        def observe(self, *arguments, **named):
            signal.raise_signal(signal.SIGINT)

    run = train(MLP([2, 3, 1]), task, steps=5, record=Record(every=1, watch=Stop()), progress=False)
    assert "interrupted" in run.summary.status.values
    with pytest.raises(KeyboardInterrupt):
        finished(run)


def test_best_linear_map_against_least_squares():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(90, 5))
    y = x @ generator.normal(size=(5, 4)) + 0.1 * generator.normal(size=(90, 4))
    folds = np.arange(90) % 3
    fit = best_linear(x, y, Splits.of(folds), 4)
    slow = np.zeros(90)
    for fold in range(3):
        out = folds == fold
        design = np.hstack([x, np.ones((90, 1))])
        slow[out] = np.square(design[out] @ np.linalg.lstsq(design[~out], y[~out], rcond=None)[0] - y[out]).sum(axis=1)
    assert fit.rank == 4
    assert fit.errors[4].mean() == pytest.approx(slow.mean(), rel=0.01)
    network = fit.map.network(2)
    values = (network(torch.from_numpy(x))).detach().numpy()
    full = (x - x.mean(0)) @ fit.map.b.T
    u, s, vt = np.linalg.svd(full, full_matrices=False)
    assert np.allclose(values, (u[:, :2] * s[:2]) @ vt[:2] + y.mean(axis=0))


@settings(derandomize=True, max_examples=20, deadline=None)
@given(st.integers(2, 40), st.integers(2, 6), st.integers(0, 5))
def test_folds_keep_groups_together_and_have_about_the_same_size(groups, count, seed):
    numbers = np.random.default_rng(seed).permutation(np.r_[np.arange(groups), np.arange(groups // 2)])
    if groups < count:
        with pytest.raises(ValueError, match="expected at least"):
            folds_of(numbers, count, seed)
        return
    folds = folds_of(numbers, count, seed)
    sizes = [len(np.unique(numbers[folds == fold])) for fold in range(count)]
    assert sum(sizes) == groups
    assert max(sizes) - min(sizes) <= 1


def test_scaling_and_back():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(50, 3)) * [1e3, 1.0, 0.0] + 5
    y = generator.normal(size=(50, 2)) * [2.0, 3.0]
    made = scaling_of(x, y)
    assert np.square(made.x(x)).sum(axis=1).mean() == pytest.approx(9)
    assert np.square(made.y(y)).sum(axis=1).mean() == pytest.approx(4)
    assert made.y_factor[0] == made.y_factor[1]
    assert made.x_factor[2] == 0
    net = MLP([3, 5, 2], dtype=torch.float64)
    raw = made.unscaled_output(made.unscaled_input(net))
    inner = net(torch.from_numpy(made.x(x))).detach().numpy()
    assert np.allclose(raw(torch.from_numpy(x)).detach().numpy(), inner / made.y_factor + made.y_mean)


@pytest.mark.parametrize(("ratio", "together"), [(9.0, True), (11.0, False)])
def test_outputs_are_scaled_one_by_one_where_their_spreads_are_unlike(ratio, together):
    column = np.random.default_rng(0).normal(size=(50, 1))
    factors = scaling_of(column, column * [1.0, ratio]).y_factor
    assert np.isclose(factors[0], factors[1]) == together
    assert np.isclose(factors[0], ratio * factors[1]) != together


def test_least_number_within_one_standard_error():
    noise = np.tile([1.0, -1.0], 50)
    errors = np.array([5.0, 2.05, 2.0, 1.98, 2.0])[:, None] + noise  # standard error 0.1, of differences 0
    assert smallest_within_error(errors, paired=False) == 1
    assert smallest_within_error(errors, paired=True) == 3


def trial(count, considered=True):
    return Trial(0.01, 12, 0, None, count, None, 1.0, float("nan"), considered)


def test_a_count_that_networks_do_not_share_is_undetermined():
    agreed = count_of(2, [trial(2), trial(2), trial(3), trial(9, considered=False)], 5, (2, 2))
    assert (agreed.interval, agreed.undetermined) == ((2, 3), False)
    split = count_of(2, [trial(3), trial(2), trial(4), trial(3)], 5, (1, 2))
    assert (split.interval, split.undetermined) == ((1, 4), True)
    assert "undetermined" in split.reason


def test_a_count_at_the_bound_says_that_more_could_not_be_seen():
    assert "cannot be detected" in count_of(3, [trial(3)], 3, (3, 3)).reason


def test_a_linear_network_stays_what_it_is_when_it_is_scaled():
    made = scaling_of(np.array([[0.0], [4.0]]), np.array([[0.0], [2.0]]))
    line = from_layers([torch.ones(1, 1), torch.ones(1, 1)], [torch.zeros(1), torch.zeros(1)], 1.0)
    raw = made.unscaled_output(made.unscaled_input(line))
    assert raw(torch.tensor([[4.0]], dtype=torch.float64)).item() == pytest.approx(1 + 3 / 2)


def test_what_adds_less_than_the_tolerance_does_not_count():
    errors = np.array([5.0, 1.02, 1.0])[:, None] + np.zeros(100)
    assert smallest_within_error(errors, paired=False) == 2
    assert smallest_within_error(errors, paired=False, rtol=0.01) == 1
    assert smallest_within_error(errors, paired=False, rtol=0.004) == 2


@pytest.mark.parametrize("layer", [1, 3, 4])
def test_polishing_keeps_the_rank_and_lowers_the_loss(layer):
    x = rows()
    data = Data(x.numpy(), np.stack([np.abs(x[:, 0].numpy())] * 5, axis=1))
    cut = project(MLP([6, 12, 12, 12, 5], seed=0, dtype=torch.float64), x, layer, 1)
    better = polish(cut, data, layer, 1, 1e-3, 40)
    loss = [float((net(x).detach() - torch.from_numpy(data.y)).square().sum(1).mean()) for net in (cut, better)]
    assert loss[1] < 0.9 * loss[0]
    assert better.widths == cut.widths
    assert int(torch.linalg.matrix_rank(better.weights[layer - 1].detach(), rtol=1e-6)) == 1
