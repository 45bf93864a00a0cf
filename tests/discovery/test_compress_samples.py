"""Which samples decide, which judge and which do neither, and how they are judged."""

import itertools

import pytest
import torch
from torch import nn

from bnrank import compress
from bnrank.discovery.compression import Timing, judging, reduction
from bnrank.discovery.compression.judging import enriched, split
from helpers import normal

from .functions import judge_of

QUICK = {"timing": Timing(repeats=1, batch_size=8)}


def perceptron(*widths, spread=1.0):
    parts = []
    for i, (n, m) in enumerate(itertools.pairwise(widths)):
        layer = nn.Linear(n, m).double()
        with torch.no_grad():
            layer.weight.copy_(spread * normal(m, n, seed=i) / n**0.5)
            layer.bias.copy_(spread * normal(m, seed=100 + i) / n**0.5)
        parts += [layer, nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def parts_of_60():
    """Return places in x of those that 60 samples are parted into by default: fitted, selecting, held out."""
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    return order[12:48], order[48:], order[:12]


@pytest.mark.parametrize(("n", "share", "count"), [(60, 0.2, 12), (25, 0.5, 12), (9, 0.01, 2), (8, 0.99, 4)])
def test_every_sample_decides_or_is_held_out_and_none_does_both(n, share, count):
    x = torch.arange(n)[:, None].double()
    parted = split(nn.Linear(1, 1), x, torch.arange(n) + 7, share, seed=4)
    assert (len(parted.deciding), len(parted.kept)) == (n - count, count)
    assert sorted(torch.cat([parted.deciding, parted.kept]).flatten().tolist()) == list(range(n))
    assert torch.equal(parted.y_kept, parted.kept.flatten().long() + 7)
    assert torch.equal(parted.x, x)


def test_samples_held_out_of_x_decide_nothing():
    net, x = perceptron(5, 12, 12, 4), normal(60, 5)
    other = x.clone()
    other[parts_of_60()[2]] = 5 * normal(12, 5, seed=1)
    found, same = compress(net, x, tol=0.2, **QUICK), compress(net, other, tol=0.2, **QUICK)
    assert found.changed
    assert found.steps == same.steps
    assert all(torch.equal(p, q) for p, q in zip(found.network.parameters(), same.network.parameters(), strict=True))
    assert found.certificate.held_out != same.certificate.held_out


def test_points_between_lie_on_lines_through_fitted_neighbors():
    """The fitted samples have a last entry of 0, the others of 1."""
    x = torch.cat([normal(16, 2, 2), torch.zeros(16, 2, 1)], 2)
    x[10:, :, 2] = 1.0
    found = enriched(x, fitted=10, minimum=200, seed=3)
    assert found.shape == (206, 2, 3)
    assert torch.equal(found[-16:], x)
    between, own = found[:190].flatten(1), x[:10].flatten(1)
    assert float(between[:, 2::3].abs().max()) == 0
    along = []
    for point in between:
        fits = []
        for i in range(10):
            for j in (own - own[i]).norm(dim=1).argsort()[1:6].tolist():
                line = own[j] - own[i]
                u = float((point - own[i]) @ line / (line @ line))
                fits.append((float((point - own[i] - u * line).norm()), u))
        assert min(fits)[0] < 1e-12
        along.append(min(fits)[1])
    assert -1 <= min(along) < -0.5
    assert 1.5 < max(along) <= 2
    assert enriched(x, fitted=10, minimum=10, seed=3) is x


@pytest.fixture
def judges(monkeypatch):
    """Return the judges that are made from here on, and what they were given."""
    made = []

    class Recorded(judging.Judge):
        def __init__(self, fitted, selected, given):
            super().__init__(fitted, selected, given)
            made.append((fitted, selected, given))

    monkeypatch.setattr(reduction, "Judge", Recorded)
    return made


def test_fits_see_fitted_samples_and_points_between_them_only(judges):
    """The last entry marks what a sample is for: 0 fits, 1 judges the fits, 2 is held out."""
    net, x = perceptron(5, 6, 3), normal(60, 5)
    for mark, places in enumerate(parts_of_60()):
        x[places, 4] = float(mark)
    compress(net, x, tol=0.1, **QUICK)
    ((fitted, selected, given),) = judges
    assert len(fitted[0]) == judging.ENRICH
    assert fitted[0][:, 4].abs().max() == 0
    assert torch.equal(fitted[0][-36:], x[parts_of_60()[0]])
    assert torch.equal(selected[0], x[parts_of_60()[1]])
    with torch.no_grad():
        assert torch.allclose(given[0], net(x[torch.cat(parts_of_60()[:2])]), atol=1e-12)
        assert torch.allclose(fitted[2][0], net(fitted[0]), atol=1e-12)
        assert torch.allclose(selected[2][0], net(selected[0]), atol=1e-12)


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


@pytest.mark.parametrize(
    ("fitted", "selected", "expected"),
    [
        ((0.3, 0.3), (0.0, 2.0), 0.5),  # sqrt(mean of 0 and 4 + standard error, sqrt(8) / sqrt(2)) / 4
        ((0.3, -0.3), (1.2, 1.2), 0.3),  # both 0.3: 1.2 / 4, without an error
        ((0.2, 1.0), (0.0, 0.0), 0.52**0.5),
        ((0.0, 0.0), (0.0, 0.0), 0.0),
        ((0.1, 0.1), (0.0, float("nan")), float("inf")),
    ],
)
def test_the_change_is_the_larger_of_two_with_a_standard_error_where_fits_are_judged(fitted, selected, expected):
    """Spreads: 1 of the fitted outputs, 4 of those given, 2 of both that were judged."""
    on_fitted, on_selected = column(1.0, -1.0), column(7.0, 7.0 - 5**0.5)
    rest = nn.Identity()
    judge = judge_of(
        (on_fitted + column(*fitted), rest, on_fitted),
        (on_selected + column(*selected), rest, on_selected),
        column(4.0, -4.0),
    )
    assert judge([nn.Identity()]) == pytest.approx(expected, rel=1e-12)


class Steep(nn.Module):
    """Ends in a function that grows so fast that points beyond the samples spread far more than these."""

    def __init__(self, end, spread):
        super().__init__()
        self.body = perceptron(20, 30, 30, 5, spread=spread)
        self.end = end

    def forward(self, x):
        return self.end(self.body(x))


@pytest.mark.parametrize(
    ("end", "spread", "seed"), [(torch.exp, 2.0, 6), (lambda h: h.abs() ** 3, 1.0, 5)], ids=["exp", "cube"]
)
def test_the_tolerance_is_met_where_points_between_spread_more_than_the_samples(end, spread, seed):
    held_out = normal(300, 20, seed=66)
    found = compress(Steep(end, spread).double(), normal(60, 20, seed=seed), tol=0.1, held_out=held_out, **QUICK)
    assert found.changed
    assert found.certificate.met
