import itertools

import pytest
import torch
from torch import nn

from bnrank.discovery.compression.neurons import balanced, forward_selection, narrowed, rankings, without_superfluous
from bnrank.discovery.compression.parts import cost, counts, run
from helpers import normal

from .functions import judge_of


def judge(parts, x):
    with torch.no_grad():
        outputs = run(parts, x).flatten(1)

    def flat(value):
        return value.flatten(1)

    return judge_of((x, flat, outputs), (x[:3], flat, outputs[:3]), outputs)


def conv_net(channels=6, seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(2, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, channels, 3),
        nn.LeakyReLU(0.1),
        nn.Flatten(),
        nn.Linear(4 * channels, 3),
    )
    return net.double()


def testforward_selection_takes_at_each_step_the_unit_that_leaves_least():
    rows, needed = normal(40, 6), normal(6, 6, seed=1) @ normal(6, 6, seed=1).T
    order, left = forward_selection(rows, needed)
    root = torch.linalg.cholesky(needed)

    def rest(units):
        target = rows @ root
        if units:
            some = rows[:, list(units)]
            target = target - some @ torch.linalg.lstsq(some, target).solution
        return float(target.square().sum())

    for m in range(6):
        taken = tuple(order[:m].tolist())
        assert float(left[m]) == pytest.approx(rest(taken), rel=1e-4)
        best = min((rest((*taken, u)), u) for u in set(range(6)) - set(taken))
        assert best[1] == int(order[m])
    assert float(left[6]) < 1e-4 * float(left[0])


def test_units_that_are_linear_in_others_on_the_samples_go_and_nothing_changes():
    """8 neurons of which 5 are positive combinations of 3 active everywhere."""
    x = normal(50, 4).abs()
    basis = normal(3, 4, seed=1).abs()
    first = nn.Linear(4, 8).double()
    last = nn.Linear(8, 2).double()
    with torch.no_grad():
        first.weight.copy_(torch.cat([basis, normal(5, 3, seed=2).abs() @ basis]))
        first.bias.fill_(1.0)
    parts = (first, nn.ReLU(), last)
    found = judge(parts, x)
    ranked = rankings(found, parts, counts(parts, x))
    slim, kept = narrowed(found, parts, ranked, 1e-2)
    assert kept == [3]
    assert torch.allclose(run(slim, x), run(parts, x), atol=1e-2)
    assert found(slim) < 2e-3


READ = [
    (nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3)), (4,)),
    (nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3)), (2, 8, 8)),
    (nn.Sequential(nn.Conv1d(2, 6, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(30, 3)), (2, 7)),
]


@pytest.mark.parametrize(("net", "shape"), READ)
def test_a_units_price_is_what_its_removal_saves(net, shape):
    parts, x = tuple(part.double() for part in net), normal(30, *shape)
    with torch.no_grad():
        parts[0].weight.copy_(normal(*parts[0].weight.shape, seed=1))
        parts[-1].weight.copy_(normal(*parts[-1].weight.shape, seed=2))
    found, whole = judge(parts, x), counts(parts, x)
    ranked = rankings(found, parts, whole)
    slim, kept = narrowed(found, parts, ranked, 3.0)
    gone = len(ranked[0].order) - kept[0]
    assert gone > 0
    assert cost(parts, x, whole) - cost(slim, x, whole) == pytest.approx(gone * ranked[0].price, rel=1e-12)


def test_as_many_units_stay_as_make_price_and_squared_change_least():
    parts = tuple(part.double() for part in READ[0][0])
    x = normal(60, 4)
    with torch.no_grad():
        parts[0].weight.copy_(normal(9, 4, seed=1) * 0.5 ** torch.arange(9)[:, None])
        parts[0].bias.zero_()
        parts[2].weight.copy_(normal(3, 9, seed=2))
    found = judge(parts, x)
    whole = counts(parts, x)
    ranking = rankings(found, parts, whole)[0]
    counted = set()
    for threshold in torch.logspace(-2, 1, 13).tolist():
        sums = [m * ranking.price + float(ranking.tails[m] / found.scale / threshold) ** 2 for m in range(1, 10)]
        _, kept = narrowed(found, parts, [ranking], threshold)
        assert kept == [1 + sums.index(min(sums))]
        counted.add(kept[0])
    assert len(counted) > 2


@pytest.mark.parametrize("place", [0, 3])
def test_channels_that_repeat_others_are_narrowed_away(place):
    net = conv_net()
    with torch.no_grad():
        net[place].weight[4:] = 0.7 * net[place].weight[1:3]
        net[place].bias[4:] = 0.7 * net[place].bias[1:3]
    x = normal(30, 2, 8, 8)
    parts = tuple(net)
    found = judge(parts, x)
    slim, kept = narrowed(found, parts, rankings(found, parts, counts(parts, x)), 1e-3)
    assert kept[0 if place == 0 else 1] == 4
    assert found(slim) < 2e-3


def test_constants_go_into_biases_only_where_the_reader_does_not_pad():
    x = normal(10, 1, 6)
    for padding in (0, 1):
        first, last = nn.Conv1d(1, 3, 1).double(), nn.Conv1d(3, 1, 3, padding=padding).double()
        with torch.no_grad():
            first.weight[2] = 0.0
            first.bias[2] = 2.0
        parts = (first, nn.ReLU(), last, nn.Flatten())
        slim, removed, merged = without_superfluous(parts, x)
        assert (removed, merged) == (1 - padding, 0)
        assert torch.allclose(run(slim, x), run(parts, x), atol=1e-12)


def test_dead_and_parallel_channels_and_neurons_go_exactly():
    net = conv_net()
    with torch.no_grad():
        net[0].weight[2] = 3 * net[0].weight[1]
        net[0].bias[2] = 3 * net[0].bias[1]
        net[3].weight[0], net[3].bias[0] = 0.0, 1.5
        net[6].weight[:, 4:8] = 0.0  # channel 1 of the second convolution is not read
    parts, x = tuple(net), normal(5, 2, 8, 8)
    slim, removed, merged = without_superfluous(parts, x)
    assert (removed, merged) == (2, 1)
    assert [slim[0].out_channels, slim[3].out_channels, slim[6].in_features] == [5, 4, 16]
    assert torch.allclose(run(slim, x), run(parts, x), atol=1e-10)


def test_runs_of_linear_layers_are_pruned_between_other_parts():
    net = nn.Sequential(
        nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4), nn.Softmax(1), nn.Linear(4, 2)
    ).double()
    with torch.no_grad():
        net[2].weight[3] = 2 * net[2].weight[1]
        net[2].bias[3] = 2 * net[2].bias[1]
        net[4].weight[:, 0] = 0.0
    x = normal(6, 3)
    slim, removed, merged = without_superfluous(tuple(net), x)
    assert (removed, merged) == (1, 1)
    assert slim[2].out_features == 4
    assert torch.allclose(run(slim, x), run(tuple(net), x), atol=1e-12)


def test_the_metric_is_the_mean_square_of_the_jacobians():
    parts = (nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    parts = tuple(part.double() for part in parts)
    x = normal(7, 3)
    metrics = judge(parts, x).metrics(parts)
    for i in (0, 2, 4):
        with torch.no_grad():
            z = run(parts[: i + 1], x)
        total = torch.zeros(z.shape[1], z.shape[1], dtype=torch.float64)
        for row in z:
            jacobian = torch.func.jacrev(lambda v, i=i: run(parts[i + 1 :], v[None])[0])(row)
            total += jacobian.T @ jacobian / len(z)
        assert torch.allclose(metrics[i] @ metrics[i], total.detach(), atol=1e-10)


def test_balancing_keeps_the_function_and_evens_the_norms():
    parts = tuple(conv_net())
    with torch.no_grad():
        parts[0].weight.mul_(1e3)
        parts[0].bias.mul_(1e3)
        parts[3].weight.mul_(1e-3)
    x = normal(4, 2, 8, 8)
    even = balanced(parts, x)
    assert torch.allclose(run(even, x), run(parts, x), rtol=1e-9)
    into = even[0].weight.flatten(1).square().sum(1) + even[0].bias.square()
    out = even[3].weight.square().sum((0, 2, 3))
    assert torch.allclose(into, out, rtol=1e-2)


def test_units_are_left_alone_where_parts_between_mix_them():
    parts = (nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    assert rankings(judge([p.double() for p in parts], normal(9, 3)), parts, (1, 1, 1)) == []
    kinds = itertools.chain([nn.Softmax(1)], [nn.Flatten(0)])
    for kind in kinds:
        parts = tuple(p.double() for p in (nn.Linear(3, 4), kind, nn.Linear(4, 2)))
        if isinstance(kind, nn.Flatten):
            continue
        assert rankings(judge(parts, normal(9, 3)), parts, (1, 1, 1)) == []
