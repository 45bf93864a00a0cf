"""Compression of modules that return (N,), or more than one tensor, or other values in every run."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import bnrank
from bnrank import compress
from bnrank.discovery import Timing
from bnrank.discovery.compression import returned
from bnrank.discovery.compression.lowrank import places
from bnrank.discovery.compression.wholes import split_up
from bnrank.discovery.compression.widths import pairs
from bnrank.networks.functional import Functional
from helpers import normal

TIMING = Timing(repeats=2)
X = normal(300, 6).float()


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


def values(out):
    """Return logits, hidden and other, by the names that they have in what the network returns."""
    if isinstance(out, tuple):
        return {"[0]": out[0], "[1][0]": out[1][0], "[1][1]": out[1][1]}
    held = out if isinstance(out, dict) else vars(out)
    return {name: held[name] for name in ("logits", "hidden", "other")}


def change(before, after):
    return float((after - before).norm() / (before - before.mean(0)).norm())


@pytest.mark.parametrize("kind", ["dict", "tuple", "dataclass"])
def test_every_output_is_bounded_and_shown_and_the_structure_stays(kind, tmp_path):
    net = Several(kind).eval()
    result = found(net)
    assert result.changed
    with torch.no_grad():
        before, after = net(X), result.network(X)
    assert type(after) is type(before)
    outputs = {output.name: output for output in result.certificate.outputs}
    page = bnrank.report(result, tmp_path / "page.html").read_text()
    assert list(outputs) == list(values(before))  # the main one first
    for name, value in values(before).items():
        moved = change(value, values(after)[name])
        assert outputs[name].on_x.centered == pytest.approx(moved, rel=1e-3)
        assert 0 < moved < 0.05
        assert f"change of {name} on x" in str(result)
        assert f"change of {name} held out" in str(result)
        assert f">{name}</td>" in page
    assert result.certificate.on_x.centered == max(output.on_x.centered for output in outputs.values())
    assert result.certificate.parameters < 0.8 * result.certificate.parameters_before


def test_one_output_beyond_the_tolerance_is_enough_not_to_meet_it():
    certificate = found(Several("dict").eval()).certificate
    for i, output in enumerate(certificate.outputs):
        far = replace(output, held_out=replace(output.held_out, centered=0.06))
        assert not replace(certificate, outputs=(*certificate.outputs[:i], far, *certificate.outputs[i + 1 :])).met


def test_the_outputs_that_are_named_are_bounded_and_the_others_leave_their_layers_as_they_are():
    net = Several("dict").eval()
    result = found(net, outputs=["logits"])
    assert [output.name for output in result.certificate.outputs] == ["logits"]
    for name in ("other.0", "other.2"):
        assert torch.equal(result.network.get_submodule(name).weight, net.get_submodule(name).weight)
    reasons = {part.name: part.reason for part in result.skipped}
    assert "no output whose change is bounded" in reasons["other.0"]
    assert change(net(X)["hidden"], result.network(X)["hidden"]) > 0.05  # which nobody bounded
    assert result.certificate.parameters < found(net).certificate.parameters
    both = found(net, outputs=("hidden", "logits")).certificate.outputs
    assert [output.name for output in both] == ["hidden", "logits"]


@pytest.mark.parametrize("names", [["boxes"], ["logits", "boxes"], [], "box"])
def test_unknown_outputs_are_refused_with_the_known_ones(names):
    with pytest.raises(ValueError, match=r"^outputs: got .*, expected some of 'logits', 'hidden', 'other'$"):
        compress(Several("dict"), X, outputs=names)


def test_outputs_are_bounded_where_their_samples_are_in_another_dimension_and_listed_where_they_have_none():
    class States(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.rnn, self.head = nn.LSTM(6, 12, 2, batch_first=True), nn.Linear(12, 2)

        def forward(self, x):
            out, (hidden, cell) = self.rnn(x)
            return {"logits": self.head(out[:, -1]), "state": [hidden, cell], "norm": out.norm(), "count": len(x)}

    net, x = States().double().eval(), normal(120, 4, 6)
    result = compress(net, x, tol=0.05, timing=TIMING)
    assert result.certificate.parameters < result.certificate.parameters_before
    before, after = net(x), result.network(x)
    moved = [change(b.movedim(1, 0), a.movedim(1, 0)) for b, a in zip(before["state"], after["state"], strict=True)]
    moved = [change(before["logits"], after["logits"]), *moved]
    assert [output.name for output in result.certificate.outputs] == ["logits", "state[0]", "state[1]"]
    assert [output.on_x.centered for output in result.certificate.outputs] == pytest.approx(moved)
    assert ("norm", "output") in [(part.name, part.type) for part in result.skipped]
    with pytest.raises(ValueError, match="outputs: got 'norm', expected some of 'logits', 'state"):
        compress(net, x, outputs=["norm"])


def test_a_heads_scale_does_not_matter():
    """Outputs of very different sizes are all kept within the tolerance of their own spread."""

    class Scaled(Several):
        def forward(self, x):
            out = super().forward(x)
            return out | {"hidden": 1e6 * out["hidden"], "other": 1e-6 * out["other"]}

    plain, scaled = (kind("dict").double().eval() for kind in (Several, Scaled))
    results = [compress(net, X.double(), tol=0.05, timing=TIMING) for net in (plain, scaled)]
    assert results[0].certificate.parameters == results[1].certificate.parameters
    assert results[1].certificate.met


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


@pytest.mark.parametrize("options", [{}, {"tune": 10}])
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
