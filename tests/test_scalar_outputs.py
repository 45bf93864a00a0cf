"""Networks whose outputs have shape (N,), and what networks return beside their main output."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import bnrank
from bnrank import compress
from bnrank.discovery import Timing
from bnrank.networks.functional import Functional
from helpers import normal


class Regressor(nn.Module):
    """Outputs of shape (N,), or (N, 1)."""

    def __init__(self, scalar=True):
        super().__init__()
        self.body, self.scalar = bnrank.MLP([4, 12, 12, 1], seed=0), scalar

    def forward(self, x):
        return self.body(x)[:, 0] if self.scalar else self.body(x)


class Sequence(nn.Module):
    """A recurrent network with outputs (N,)."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1]).squeeze(-1)


@dataclass
class Named:
    count: int
    values: torch.Tensor


class Plain:
    def __init__(self, values):
        self.values = values


class Wrapped(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.layer, self.wrap = nn.Linear(4, 3), wrap

    def forward(self, x):
        return self.wrap(self.layer(x))


class Powers(nn.Module):
    def forward(self, x):
        assert x.ndim == 1
        return torch.stack([x, x.square()], 1)


SCALAR, COLUMN = Regressor(), Regressor(scalar=False)
X, Y = normal(60, 4).float(), normal(60, seed=1).float()


def test_outputs_of_shape_n_are_one_feature():
    assert torch.equal(Functional(SCALAR)(X), Functional(COLUMN)(X))
    assert Functional(SCALAR).main(X).shape == (60,)


@pytest.mark.parametrize("y", [Y, Y[:, None]])
def test_a_profile_with_outputs_of_shape_n_is_that_with_one_column(y):
    for target in (None, y):
        ours, column = bnrank.profile(SCALAR, X, target), bnrank.profile(COLUMN, X, Y[:, None])
        shared = [name for name in ours.data_vars if name in column]
        assert len(shared) > 10
        assert all(ours[name].equals(column[name]) for name in shared)
    assert float(ours.cost) == pytest.approx(float((SCALAR(X) - Y).square().mean().detach()))


def test_integers_stay_classes_and_one_column_is_no_two():
    net = bnrank.MLP([4, 8, 3], seed=0)
    labels = torch.arange(60) % 3
    assert bnrank.profile(net, X, labels).cost.attrs["loss"] == "cross_entropy"
    for net, y in ((SCALAR, labels), (bnrank.MLP([4, 8, 3], seed=0), Y)):
        with pytest.raises(ValueError, match=r"^y: got"):
            bnrank.profile(net, X, y)


def test_a_recurrent_regressor_is_measured():
    x = normal(40, 5, 3).float()
    profile = bnrank.profile(Sequence(), x, Y[:40])
    assert profile.units.values[-1] == 1
    assert bnrank.compare(Sequence(), Sequence(), x).data.output_change > 0


def test_ranks_checks_and_comparisons_take_outputs_of_shape_n():
    bracket, column = bnrank.rank(SCALAR, X), bnrank.rank(COLUMN, X)
    assert (bracket.lower, bracket.upper) == (column.lower, column.upper)
    assert torch.allclose(bracket.h(bracket.g(X)).flatten(), SCALAR(X), atol=1e-5)
    ours, theirs = bnrank.check(SCALAR, X, Y, ridge=1e-3), bnrank.check(COLUMN, X, Y[:, None], ridge=1e-3)
    assert [verdict.status for verdict in ours] == [verdict.status for verdict in theirs]
    assert bnrank.compare(SCALAR, COLUMN, X).data.output_change == 0
    assert str(bnrank.bottleneck(SCALAR, X)) == str(bnrank.bottleneck(COLUMN, X))


def test_parts_of_a_sequential_still_pass_vectors_on():
    net = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0), Powers(), nn.Linear(2, 2))
    bracket = bnrank.rank(net, X)
    assert bracket.upper == 1
    assert bracket.error < 1e-6


def test_a_flow_takes_outputs_of_shape_n_with_named_losses():
    ours = bnrank.flow(SCALAR, (X, Y), 0.01)
    assert float(ours.loss[-1]) == pytest.approx(float(bnrank.flow(COLUMN, (X, Y[:, None]), 0.01).loss[-1]))
    with pytest.raises(ValueError, match=r"^net: gives outputs of shape \(60,\)"):  # y might have any shape
        bnrank.flow(SCALAR, (X, Y, lambda out, y: (out - y).square().mean()), 0.01)


@pytest.mark.parametrize("wrap", [lambda out: {"values": out}, lambda out: Named(3, out), lambda out: (out, 1)])
def test_the_first_tensor_of_a_mapping_dataclass_or_tuple_counts(wrap):
    net = Wrapped(wrap)
    assert torch.equal(Functional(net)(X), net.layer.double()(X.double()))
    bracket = bnrank.rank(net.float(), X)
    assert torch.allclose(bracket.h(bracket.g(X)), net.layer(X), atol=1e-5)


def test_an_object_without_known_names_is_refused_with_these_names():
    with pytest.raises(ValueError, match=r"Plain, expected a tensor.* object with one in logits, last_hidden_state"):
        bnrank.profile(Wrapped(Plain), X)


def test_outputs_of_shape_n_are_rows_of_one_unit():
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))
    watch = bnrank.watch(net, every=1)
    net(normal(30, 5).float()).sum().backward()
    watch.step()
    row = watch.history.sel(layer="output").isel(step=-1)
    assert (float(row.units), float(row.rows), float(row.dimension_95)) == (1, 30, 1)


def test_the_output_for_a_single_sample_is_one_row():
    net = nn.Sequential(nn.Linear(5, 4))
    watch = bnrank.watch(net, every=1)
    net(torch.ones(5)).sum().backward()
    watch.step()
    row = watch.history.sel(layer="output").isel(step=-1)
    assert (float(row.units), float(row.rows)) == (4, 1)


class Squeezed(nn.Module):
    """Outputs of shape (N,), and () of one sample."""

    def __init__(self):
        super().__init__()
        self.body = bnrank.MLP([4, 8, 1], seed=0)

    def forward(self, x):
        return self.body(x).squeeze()


@pytest.mark.parametrize("n", [1, 2, 4097])
def test_an_output_of_one_sample_without_dimensions_counts_as_one_value(n):
    x = normal(n, 4).float()
    assert bnrank.profile(Squeezed(), x)["units"].values.tolist() == [8, 1]
    function = Functional(Squeezed())
    assert function(x).shape == (n, 1)
    assert function.main(x).shape == (n,)
    assert torch.equal(function(x[:1])[0], function.main(x[:1]))


def test_a_squeezed_output_is_compressed_with_one_sample_in_the_last_block():
    x = normal(4097, 4).float()
    result = compress(Squeezed(), x, tol=0.3, timing=Timing(repeats=2), progress=False)
    assert result.certificate.met
