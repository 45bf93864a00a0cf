"""Networks that do not run in float64 as they are: complex parameters, plain tensors, operations without float64."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank.cli.samples import taken
from bnrank.networks.functional import Functional
from bnrank.networks.inputs import Inputs
from bnrank.networks.replicas import in_precision
from helpers import normal

X = normal(60, 8).float()


class Spectral(nn.Module):
    """A layer on the Fourier coefficients with a complex parameter, or with its parts, then linear layers."""

    def __init__(self, parts=False):
        super().__init__()
        torch.manual_seed(0)
        w = torch.randn(5, 5, dtype=torch.complex64)
        self.w = nn.Parameter(torch.view_as_real(w).clone() if parts else w)
        self.register_buffer("shift", torch.full((5,), 0.5j, dtype=torch.complex64))
        self.body = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 2))

    def mixed(self, x):
        w = self.w if self.w.is_complex() else torch.view_as_complex(self.w)
        return torch.fft.irfft((torch.fft.rfft(x) + self.shift) @ w, n=8)

    def forward(self, x):
        return self.body(self.mixed(x))


class Table(nn.Module):
    """Multiplies by a tensor that is no buffer, and notes the precisions that it is run in."""

    seen: ClassVar[set[torch.dtype]] = set()

    def __init__(self, buffer=False):
        super().__init__()
        torch.manual_seed(0)
        self.l, self.o = nn.Linear(8, 8), nn.Linear(8, 2)
        self.register_buffer("mask", torch.eye(8)) if buffer else setattr(self, "mask", torch.eye(8))

    def forward(self, x):
        self.seen.add(x.dtype)
        return self.o(self.l(x @ self.mask).relu())


class Matrix(nn.Module):
    """x W^T + b, times a factor, by an operation that has no float64."""

    def __init__(self, factor=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.w, self.b, self.factor = nn.Parameter(torch.randn(300, 8)), nn.Parameter(torch.randn(300)), factor

    def forward(self, x):
        if x.dtype == torch.float64:
            raise RuntimeError("not implemented for 'Double'")
        return (x[:, None, :] * self.w).flip(2).sum(2) * self.factor + self.b


class Singly(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.m, self.o = Matrix(factor), nn.Linear(300, 2)

    def forward(self, x):
        return self.o(self.m(x).relu())


@pytest.mark.parametrize(("dtype", "kind"), [(torch.float64, torch.complex128), (torch.float32, torch.complex64)])
def test_complex_tensors_are_cast_with_the_others(dtype, kind):
    net = Spectral()
    function = Functional(net, dtype)
    assert {t.dtype for t in (function.parameters["w"], function.buffers["shift"])} == {kind}
    given = Inputs((X,), {"z": torch.ones(60, dtype=torch.complex64), "i": torch.ones(60, dtype=torch.int32)})
    assert [t.dtype for t in given.to(X.device, dtype).tensors] == [dtype, kind, torch.int32]
    assert function(X).dtype == dtype
    assert net.w.dtype == torch.complex64


def test_a_network_with_complex_parameters_is_measured_as_with_their_parts():
    ds, twin = bnrank.profile(Spectral(), X), bnrank.profile(Spectral(parts=True), X)
    for name in ("activation_singular_values", "jacobian_singular_values", "weight_rank", "dimension_95"):
        rows = slice(3) if "layer" in ds[name].dims else slice(None)  # w of its parts is a stack of other matrices
        np.testing.assert_allclose(ds[name][rows], twin[name][rows], rtol=1e-12, atol=1e-12)
    net = Spectral().double()
    net.w.data, net.shift = torch.view_as_complex(Spectral(parts=True).w.detach().double()), Spectral().shift.cdouble()
    first = torch.linalg.svdvals(net.body[:2](net.mixed(X.double()))) / 60**0.5
    np.testing.assert_allclose(ds.activation_singular_values[0], first.detach(), rtol=1e-10, atol=1e-12)
    assert np.isnan(ds.ntk_trace).all()
    assert np.isfinite(twin.ntk_trace).all()
    (told,) = [line for line in bnrank.measures.describe(ds) if "ntk_trace" in line]
    assert "parameters that are complex numbers (w), expected real ones: keep torch.view_as_real" in told
    assert [layer.name for layer in bnrank.networks.read(Spectral(), X).unobserved] == ["w"]
    assert bnrank.bottleneck(Spectral(), X).rank == bnrank.bottleneck(Spectral(parts=True), X).rank
    assert float(bnrank.compare(Spectral(), Spectral(parts=True), X).data.cka[0, 0]) == pytest.approx(1)


def test_statements_on_gradients_are_for_real_parameters():
    with pytest.raises(ValueError, match=r"^net: got parameters that are complex numbers \(w\), expected real ones"):
        bnrank.check(Spectral(), X)
    assert bnrank.check(Spectral(parts=True), X)


def test_a_linear_layer_of_complex_numbers_is_listed():
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 6, dtype=torch.complex64), nn.Linear(6, 2)

        def forward(self, x):
            return self.b(self.a(torch.complex(x, x)).abs())

    ds = bnrank.profile(Complex(), X)
    assert ds.layer_name.values.tolist() == ["b", "a"]
    assert "a: only its weight is measured: its values are complex numbers" in bnrank.measures.describe(ds)
    net = Complex()
    alone = bnrank.profile(net).weight_singular_values[0]
    np.testing.assert_allclose(alone, torch.linalg.svdvals(net.a.weight.detach().cdouble()), rtol=1e-10)


def test_complex_parameters_stay_in_a_compressed_network():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.exp(1j * torch.arange(7)).to(torch.complex64))

        def forward(self, x):
            return torch.fft.irfft(torch.fft.rfft(x) * self.w, n=12).abs()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 12), Turned(), nn.Linear(12, 2))
    with torch.no_grad():
        net[2].weight[2:] = 0.0
        net[2].bias[2:] = 0.0
    found = bnrank.compress(net, X, tune=0, timing=bnrank.discovery.Timing(repeats=1))
    assert found.certificate.met
    assert found.certificate.parameters < found.certificate.parameters_before
    assert {p.dtype for p in found.network.parameters()} == {torch.float32, torch.complex64}
    assert any(torch.equal(p, net[3].w) for p in found.network.parameters())
    expected = net(X)
    assert float((found.network(X) - expected).norm() / (expected - expected.mean(0)).norm()) < 0.01


@pytest.mark.parametrize(
    "run",
    [bnrank.profile, bnrank.bottleneck, lambda net, x, **more: bnrank.compare(net, net, x, **more)],
    ids=["profile", "bottleneck", "compare"],
)
def test_the_precision_that_is_given_holds_for_every_pass(run):
    Table.seen.clear()
    run(Table(), X, dtype=torch.float32)
    assert Table.seen == {torch.float32}


def test_a_plain_tensor_measures_in_float32_as_a_buffer_does():
    some, same = (bnrank.profile(Table(buffer), X, dtype=torch.float32) for buffer in (False, True))
    assert some.drop_attrs().identical(same.drop_attrs())
    close = bnrank.profile(Table(True), X)
    np.testing.assert_allclose(some.activation_singular_values, close.activation_singular_values, rtol=1e-5, atol=1e-5)


MEASURES = {
    "profile": bnrank.profile,
    "bottleneck": bnrank.bottleneck,
    "compare": lambda net, x: bnrank.compare(net, net, x),
    "check": bnrank.check,
    "compress": lambda net, x: bnrank.compress(net, x, tune=0, timing=bnrank.discovery.Timing(repeats=1)),
}


@pytest.mark.parametrize("name", MEASURES)
def test_a_plain_tensor_is_converted_as_a_buffer_is(name):
    found, expected = (MEASURES[name](Table(buffer), X) for buffer in (False, True))
    if name == "profile":
        assert found.activation_singular_values.equals(expected.activation_singular_values)
    assert type(found) is type(expected)


def test_an_operation_without_float64_is_not_put_down_to_plain_tensors():
    with pytest.raises(
        ValueError, match=r"not implemented for 'Double'; pass dtype=torch.float32 to a function"
    ) as got:
        bnrank.profile(Singly(), X)
    assert "buffers" not in str(got.value)
    ds = bnrank.profile(Singly(), X, dtype=torch.float32)
    net = Singly()
    s = torch.linalg.svdvals(net.m.w.detach().double())
    np.testing.assert_allclose(ds.weight_singular_values[0, :8], s, rtol=1e-6)


def test_a_reading_takes_the_precision_in_which_the_network_runs():
    reading = bnrank.networks.read(Singly(), X)
    assert [layer.name for layer in reading.layers] == ["m.w", "o"]
    assert not reading.unobserved
    other = bnrank.networks.read(Singly(factor=1.01), X)
    assert [layer.name for layer in other.layers] == ["o"]
    assert other.unobserved[0].reason == "its module does something other than x W^T + b with it"


def test_a_network_that_fails_in_all_precisions_gets_no_advice_on_them():
    with pytest.raises(ValueError, match=r"^net: Linear failed on x of shape \(N, 8\) in torch.float64") as got:
        bnrank.profile(nn.Linear(5, 2), X)
    assert "precision" not in str(got.value)
    assert "dtype=" not in str(got.value)


class Float32(nn.Linear):
    """Takes integers, and real numbers in float32 only."""

    def forward(self, x):
        if x.is_floating_point() and x.dtype != torch.float32:
            raise TypeError("float32 only")
        return super().forward(x.to(self.weight.dtype))


def test_a_network_of_float32_is_not_taken_for_one_of_integers():
    net, whole = Float32(3, 2), np.arange(12.0).reshape(4, 3)
    with pytest.raises(ValueError, match=r"^net: Float32 runs on x of shape \(N, 3\) in torch.float32, but not in"):
        bnrank.profile(net, normal(60, 3))
    assert taken(whole, net).dtype == np.float64
    assert taken(whole.astype(int) % 3, nn.Embedding(3, 1)).dtype == np.int64


def test_a_buffer_in_two_places_stays_one_in_another_precision():
    net = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    for name, shared in (("places", torch.arange(3)), ("scale", torch.ones(2, dtype=torch.float64))):
        for part in net:
            part.register_buffer(name, shared)
    in_precision(net, torch.float64)
    assert net[0].places is net[1].places
    assert net[0].scale is net[1].scale
    assert net[0].weight.dtype == torch.float64
