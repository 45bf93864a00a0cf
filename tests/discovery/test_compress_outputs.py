"""Compression of modules that return (N,), or more than one tensor, or other values in every run."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import bnrank
from bnrank.discovery import Timing, compress
from bnrank.discovery.compression import returned
from bnrank.discovery.compression.lowrank import places
from bnrank.discovery.compression.wholes import split_up
from bnrank.discovery.compression.widths import pairs
from bnrank.networks.functional import Functional
from helpers import normal

TIMING = Timing(repeats=2)
X = normal(300, 6).float()
OPTIONS = ({}, {"tune": 10}, {"zeros": True}, {"completions": True})
KINDS = [*(("dict", options) for options in OPTIONS), ("tuple", {}), ("dataclass", {})]


@dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor
    other: torch.Tensor


class Several(nn.Module):
    """A body of low rank, a head, and another head that the main output does not depend on."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU())
        self.head, self.wide = nn.Linear(30, 3), nn.Linear(30, 30)
        self.other = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 20))
        self.kind = kind

    def forward(self, x):
        hidden = self.wide(self.body(x)).relu()
        logits, other = self.head(hidden), self.other(hidden)
        if self.kind == "dict":
            return {"loss": None, "hidden": hidden, "other": other, "logits": logits}
        return (logits, [hidden, other]) if self.kind == "tuple" else Output(logits, hidden, other)


class Scalar(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head = nn.LSTM(6, 12, batch_first=True), nn.Sequential(nn.Linear(12, 20), nn.ReLU())
        self.last = nn.Linear(20, 1)

    def forward(self, x):
        return self.last(self.head(self.rnn(x[:, None])[0][:, -1])).squeeze(-1)


def found(net, **options):
    result = compress(net, X, tol=0.05, timing=TIMING, progress=False, **options)
    assert result.certificate.met
    return result


def parts(out):
    """Return logits, hidden and other."""
    if isinstance(out, tuple):
        return out[0], *out[1]
    return (
        (out["logits"], out["hidden"], out["other"]) if isinstance(out, dict) else (out.logits, out.hidden, out.other)
    )


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_the_change_is_that_of_the_main_output_and_the_structure_stays(kind, options):
    net = Several(kind).eval()
    result = found(net, **options)
    assert result.changed
    with torch.no_grad():
        before, after = net(X), result.network(X)
    assert type(after) is type(before)
    assert [t.shape for t in parts(after)] == [t.shape for t in parts(before)]  # hidden units are read by others
    spread = (parts(before)[0] - parts(before)[0].mean(0)).norm()
    change = float((parts(after)[0] - parts(before)[0]).norm() / spread)
    assert change == pytest.approx(result.certificate.on_x.centered, rel=1e-3)
    assert 0 < change < 0.05


def test_layers_of_other_outputs_are_left_unchanged_with_the_reason():
    net = Several("dict").eval()
    results = [found(net, **options) for options in ({}, {"zeros": True})]
    for result in results:
        for name in ("other.0", "other.2"):
            assert torch.equal(result.network.get_submodule(name).weight, net.get_submodule(name).weight)
    reasons = {part.name: part.reason for part in results[0].skipped}
    assert "other.0" in reasons
    assert "main output" in reasons["other.0"]


def test_units_that_another_output_shows_are_not_removed():
    net = nn.ModuleDict({"first": nn.Linear(6, 8), "head": nn.Linear(8, 2)}).double()

    def run(x, shown):
        hidden = net["first"](x).relu()
        return net["head"](hidden), *([hidden] if shown else [])

    for shown in (False, True):
        net.forward = lambda x, shown=shown: run(x, shown)
        names, _ = places(net, X.double())
        found = [(pair.layer, pair.reader) for pair in pairs(net, names, X.double())]
        assert found == ([] if shown else [("first", "head")])


@pytest.mark.parametrize("options", OPTIONS)
def test_a_module_of_outputs_of_shape_n_still_returns_them(options):
    chain = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 30), nn.ReLU(), nn.Linear(30, 1), nn.Flatten(0))
    for net in (Scalar().eval(), chain):
        result = found(net, **options)
        assert result.changed
        assert result.network(X).shape == (300,)
        change = Functional(result.network)(X) - Functional(net)(X)
        assert float(change.norm()) < 0.05 * float(Functional(net)(X).norm())


class ToDict(nn.Module):
    def forward(self, x):
        return {"logits": x, "other": x + 1}


def test_a_sequential_that_ends_in_a_mapping_is_compressed():
    net = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 30), nn.ReLU(), nn.Linear(30, 3), ToDict())
    result = found(net)
    assert result.changed
    assert set(result.network(X)) == {"logits", "other"}


class Noisy(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.body, self.size = bnrank.MLP([6, 8, 2], seed=0), size

    def forward(self, x):
        out = self.body(x)
        return out + self.size * torch.randn_like(out)


class Noise(nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.randn_like(x)


def test_a_module_that_is_random_in_eval_mode_is_named_as_such():
    state = torch.random.get_rng_state()
    assert "outputs of two runs on the same samples differ" in returned.noise(Functional(Noisy(0.1)), X)
    assert returned.noise(Functional(Noisy(0.0)), X) == ""
    assert torch.equal(state, torch.random.get_rng_state())
    for net in (Noisy(0.1), nn.Sequential(nn.Linear(6, 3), nn.ReLU(), Noise(), nn.Linear(3, 2))):
        result = compress(net, X, tol=0.01, timing=TIMING)
        assert result.reason.startswith("the outputs of two runs")
        assert result.certificate.jacobian_rank is result.certificate.jacobian_rank_before is None


def test_an_unchanged_network_has_no_bound_on_new_samples(tmp_path):
    net = bnrank.MLP([6, 3, 3], seed=0)
    result = compress(net, X, tol=1e-4, timing=TIMING)
    assert not result.changed
    page = bnrank.report(result, tmp_path / "page.html").read_text()
    assert "new samples beyond" not in str(result)
    assert "For i.i.d. samples" not in page
    assert "new samples beyond" in str(found(Several("tuple")))


def test_a_page_counts_the_entries_that_are_not_zero(tmp_path):
    result = found(bnrank.MLP([6, 20, 20, 3], seed=0), zeros=True)
    before, after = result.certificate.nonzero_before, result.certificate.nonzero
    page = bnrank.report(result, tmp_path / "page.html").read_text()
    assert f"{before:,} parameters that are not zero became {after:,}, {before / after:.3g} times fewer" in page
    assert f", {after:,} of them not zero" in result.certificate.headline


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head = nn.LSTM(6, 12, batch_first=True), nn.Linear(12, 2)

    def forward(self, x):
        hidden, (last, _) = self.rnn(x)
        return {"last": last, "logits": self.head(hidden[:, -1])}


def test_recurrent_layers_of_a_module_with_several_outputs_are_split():
    net = Recurrent().double().eval()
    assert split_up(net, X.double()[:2, None]) == ["rnn"]
    result = compress(Recurrent(), normal(300, 3, 6).float(), tol=0.05, timing=TIMING)
    assert result.changed
    assert result.network(X[:, None])["last"].shape == (1, 300, 12)


def test_a_module_whose_output_loses_its_first_dimension_for_one_sample_is_compressed(tmp_path):
    class Squeezed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Several("tuple").body.append(nn.Linear(30, 3))

        def forward(self, x):
            return self.body(x).squeeze()

    net = Squeezed().eval()
    result = found(net)
    assert result.changed
    path = tmp_path / "smaller.safetensors"
    result.save(path)
    assert torch.equal(bnrank.load(path, net)(X), result.network(X))
