import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
from bnrank.measures import spectra
from bnrank.measures.convolution import circular_singular_values
from bnrank.networks import read
from helpers import normal
from oracles import circular_convolution_matrix, float64, layer_values, spectrum


def flat(values):
    return values.flatten().sort(descending=True).values


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    c_out=st.integers(1, 3),
    c_in=st.integers(1, 3),
    kernel=st.tuples(st.integers(1, 6), st.integers(1, 4)),
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    dilation=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_the_convolution_spectrum_is_that_of_the_dense_matrix(c_out, c_in, kernel, size, dilation, seed):
    """Kernels smaller and larger than the image, even and odd sizes, c_in != c_out (T28)."""
    k = normal(c_out, c_in, *kernel, seed=seed)
    found = spectra.conv_singular_values(k, size, dilation=dilation)
    dense = torch.linalg.svdvals(circular_convolution_matrix(k, size, dilation=dilation))
    assert found.shape == (*size, min(c_out, c_in))
    assert torch.allclose(flat(found), dense, atol=1e-12)
    assert bool((found.diff(dim=-1) <= 0).all())


@pytest.mark.parametrize(("taps", "size"), [((3,), (7,)), ((9,), (4,)), ((2, 2, 3), (2, 3, 4)), ((3, 3), (6, 4))])
@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_other_dimensions_strides_and_groups(taps, size, stride, groups):
    if any(n % stride for n in size):
        with pytest.raises(ValueError, match="multiples of the stride"):
            spectra.conv_singular_values(normal(2, 2, *taps), size, stride=stride)
        return
    k = normal(4, 2, *taps)
    found = spectra.conv_singular_values(k, size, stride=stride, groups=groups)
    matrix = circular_convolution_matrix(k, size, stride=stride, groups=groups)
    dense = torch.linalg.svdvals(matrix)
    assert torch.allclose(flat(found)[: len(dense)], dense, atol=1e-12)
    assert found.numel() == len(dense)
    assert found.shape[: len(size)] == tuple(n // stride for n in size)


def test_frequencies_are_those_of_the_fft_and_mirror_each_other():
    k = normal(3, 2, 3, 3)
    found = spectra.conv_singular_values(k, 5)
    transfer = torch.fft.fft2(k, s=(5, 5)).permute(2, 3, 0, 1)
    assert torch.allclose(found, torch.linalg.svdvals(transfer))
    assert torch.allclose(found, found.roll((-1, -1), (0, 1)).flip((0, 1)))  # s_w = s_{-w}
    assert torch.allclose((found**2).sum(), 25 * (k**2).sum())


def test_frequencies_in_pieces_are_the_same(monkeypatch):
    k = normal(3, 2, 3, 3)
    whole = spectra.conv_singular_values(k, 6)
    monkeypatch.setattr("bnrank.measures.convolution.CHUNK_ENTRIES", 12)
    assert torch.allclose(spectra.conv_singular_values(k, 6), whole, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("conv", "note"),
    [
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), ""),
        (nn.Conv2d(2, 3, 4, padding="same", padding_mode="circular"), ""),
        (nn.Conv2d(2, 3, 3, padding=2, dilation=2, padding_mode="circular"), ""),
        (nn.Conv2d(2, 3, 3, padding=1, stride=2, padding_mode="circular"), ""),
        (nn.Conv2d(2, 4, 3, padding=1, groups=2, padding_mode="circular"), ""),
        (nn.Conv2d(2, 3, 1), ""),
        (nn.Conv2d(2, 3, 3, padding=1), "pads with zeros"),
        (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), "pads with reflect"),
        (nn.Conv2d(2, 3, 3), "does not pad"),
        (nn.Conv2d(2, 3, 3, padding=2, padding_mode="circular"), r"turns \(6, 6\) into \(8, 8\)"),
    ],
)
def test_without_a_note_the_circular_spectrum_is_that_of_the_layer_itself(conv, note):
    x = torch.randn(2, 2, 6, 6)
    found = spectra.weight_singular_values(nn.Sequential(conv), x)
    _, remark = circular_singular_values(read(nn.Sequential(conv), x).layers[0])
    assert bool(re.search(note, remark)) if note else remark == ""
    assert found.notes == {}
    linear = float64(conv)
    basis = torch.eye(72, dtype=torch.float64).reshape(72, 2, 6, 6)
    with torch.no_grad():
        matrix = (linear(basis) - linear(torch.zeros_like(basis))).flatten(1)
    dense = torch.linalg.svdvals(matrix)[: found["0"].numel()]
    assert torch.allclose(found["0"], dense, atol=1e-10)


def test_a_convolution_without_a_size_is_skipped_with_the_reason():
    net = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(12, 2), nn.BatchNorm1d(2))
    found = spectra.weight_singular_values(net)
    assert list(found) == ["2"]
    assert {s.name: s.type for s in found.skipped} == {"0": "Conv1d", "3": "BatchNorm1d"}
    assert "give an example x or a size" in next(s.reason for s in found.skipped if s.name == "0")
    by_size, by_x = (
        spectra.weight_singular_values(net, size=6),
        spectra.weight_singular_values(net, torch.ones(2, 1, 6)),
    )
    assert torch.equal(by_size["0"], by_x["0"])
    odd = spectra.weight_singular_values(nn.Sequential(nn.Conv1d(1, 2, 3, stride=2)), size=7)
    assert len(odd["0"]) == 6
    small = spectra.weight_singular_values(nn.Sequential(nn.Conv1d(1, 2, 3)), size=2)
    assert "kernel is larger than images" in small.skipped[0].reason


def test_weights_of_any_precision_in_float64():
    net = bnrank.MLP([4, 6, 3], seed=1, dtype=torch.bfloat16)
    found = spectra.weight_singular_values(net)
    assert list(found) == ["layers.0", "layers.1"]
    for values, weight in zip(found.values(), net.weights, strict=True):
        assert values.dtype == torch.float64
        assert torch.allclose(values, torch.linalg.svdvals(weight.detach().double()))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 60),
    features=st.integers(1, 12),
    rank=st.integers(0, 12),
    chunk=st.integers(1, 70),
    seed=st.integers(0, 99),
)
def test_pieces_put_together_equal_the_whole(n, features, rank, chunk, seed):
    z = normal(n, rank, seed=seed) @ normal(rank, features, seed=seed + 1)
    whole = torch.linalg.svdvals(z)
    for method, atol in (("qr", 1e-13), ("gram", 3e-8)):
        pieces = spectra.Accumulator(method)
        for piece in z.split(chunk):
            pieces.add(piece)
        found = pieces.singular_values()
        assert found.shape == whole.shape
        assert torch.allclose(found, whole, rtol=1e-6, atol=atol * max(1.0, float(whole[0])))
    assert spectra.rank(whole, 1e-10) == min(n, features, rank)


@pytest.mark.parametrize("exponent", [-1030, -600, 600, 1000])
def test_pieces_put_together_at_the_ends_of_the_range_of_floats(exponent):
    z = torch.complex(normal(40, 5), normal(40, 5, seed=1))
    pieces, factor = spectra.Accumulator(), 2.0 ** (exponent // 2)
    for piece in z.split(9):
        pieces.add(piece * factor * factor)
    found = pieces.singular_values() / factor / factor
    assert torch.allclose(found, torch.linalg.svdvals(z), rtol=1e-3)  # subnormal numbers have fewer digits


def test_matrices_of_different_sizes_are_put_together_each_in_its_own():
    z = torch.stack([normal(20, 3), normal(20, 3, seed=1)])
    sizes = torch.tensor([1e160, 1e-160], dtype=torch.float64)[:, None, None]
    pieces = spectra.Accumulator()
    for piece in (z * sizes).split(7, 1):
        pieces.add(piece)
    assert torch.allclose(pieces.singular_values() / sizes[..., 0], torch.linalg.svdvals(z), rtol=1e-12)


def test_qr_sees_what_gram_cannot():
    q1, q2 = torch.linalg.qr(normal(200, 3))[0], torch.linalg.qr(normal(3, 3))[0]
    planted = torch.tensor([1.0, 1e-5, 1e-10], dtype=torch.float64)
    found = {}
    for method in ("qr", "gram"):
        pieces = spectra.Accumulator(method)
        for piece in (q1 * planted @ q2).split(50):
            pieces.add(piece)
        found[method] = pieces.singular_values()
    assert torch.allclose(found["qr"], planted, rtol=1e-3, atol=0)
    assert torch.allclose(found["gram"][:2], planted[:2], rtol=1e-3, atol=0)
    assert not torch.allclose(found["gram"], planted, rtol=0.5, atol=0)


@pytest.mark.parametrize("method", ["qr", "gram"])
@pytest.mark.parametrize("chunk", [7, 1000])
def test_activations_and_preactivations_of_an_mlp(method, chunk):
    net, x = bnrank.MLP([4, 9, 6, 3], slope=0.1, seed=0), normal(50, 4).float()
    pre = spectra.activation_singular_values(net, x, method=method, chunk_size=chunk, which="preactivations")
    post = spectra.activation_singular_values(net, x, method=method, chunk_size=chunk)
    a = x.double()
    for i, (w, b) in enumerate(zip(net.weights, net.biases, strict=True)):
        z = a @ w.detach().double().T + b.detach().double()
        a = torch.where(z >= 0, z, 0.1 * z) if i < 2 else z
        assert torch.allclose(pre[f"layers.{i}"], spectrum(z), atol=1e-7)
        assert torch.allclose(post[f"layers.{i}"], spectrum(a), atol=1e-7)
    assert pre.floor == {"qr": 1e-15, "gram": 1e-8}[method]
    assert spectra.activation_singular_values(net, x, dtype=torch.float32).floor > 1e-8


def test_activations_of_a_convolutional_network_are_flattened_to_samples_by_features():
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    )
    x = normal(20, 1, 6, 6).float()
    pre, post = (
        spectra.activation_singular_values(net, x, which="preactivations"),
        spectra.activation_singular_values(net, x),
    )
    copied = float64(net)
    z, entering, out = layer_values(copied, [copied[0], copied[4], copied[5]], x)
    assert torch.allclose(pre["0"], spectrum(z))
    assert torch.allclose(post["0"], spectrum(entering), atol=1e-12)
    assert torch.allclose(post["5"], spectrum(out))
    assert [s.name for s in post.skipped] == ["1"]


@pytest.mark.parametrize("width", [4, 12, 37, 700])
def test_blocks_of_rows_have_the_singular_values_of_all_rows(width):
    z = normal(12, width)
    pieces = spectra.Accumulator()
    for piece in z.split(5):
        given = piece.clone()
        pieces.add(given)
        given.zero_()  # a copy is held
    assert torch.allclose(pieces.singular_values(), torch.linalg.svdvals(z), rtol=1e-12)


def test_a_small_wide_matrix_in_blocks_of_columns_is_scaled_where_squares_vanish():
    z = 1e-200 * normal(3, 900)
    pieces = spectra.Accumulator()
    for piece in z.split(2):
        pieces.add(piece)
    assert torch.allclose(1e200 * pieces.singular_values(), torch.linalg.svdvals(1e200 * z), rtol=1e-12)
    pieces.add(torch.full((1, 900), math.nan))
    with pytest.raises(ValueError, match="piece: got NaN"):
        pieces.singular_values()


def test_memory_is_bounded_by_several_passes_and_a_limit(monkeypatch):
    net, x = bnrank.MLP([3, 8, 20, 8, 2], seed=0), normal(30, 3)
    whole = spectra.activation_singular_values(net, x)
    monkeypatch.setattr(spectra, "MAX_ENTRIES", 100)
    monkeypatch.setattr(spectra, "MAX_TOGETHER", 64)
    passes, stream = [], spectra.stream
    monkeypatch.setattr(spectra, "stream", lambda *given, **some: passes.append(given) or stream(*given, **some))
    found = spectra.activation_singular_values(net, x)
    assert list(found) == ["layers.0", "layers.2", "layers.3"]
    assert all(torch.equal(found[name], whole[name]) for name in found)
    assert "20 features for 30 samples need 400" in found.skipped[0].reason
    assert len(passes) == 3  # the layers need 64, 400, 64 and 4 numbers


@settings(max_examples=20, deadline=None, derandomize=True)
@given(k=st.integers(1, 5), scale=st.floats(1e-6, 1e6), seed=st.integers(0, 99))
def test_a_planted_rank_is_found_at_every_scale(k, scale, seed):
    z = scale * normal(30, k, seed=seed) @ normal(k, 8, seed=seed + 1)
    assert spectra.rank(torch.linalg.svdvals(z), rtol=1e-9) == k


def test_rank_of_nothing_and_with_padding():
    assert spectra.rank([0.0, 0.0]) == 0
    assert spectra.rank(np.array([1.0, 0.5, np.nan])) == 2
    with pytest.raises(ValueError, match="rtol: got 1"):
        spectra.rank([1.0], rtol=1.0)
    with pytest.raises(ValueError, match="non-negative"):
        spectra.rank([-1.0])


def test_ranks_of_layers():
    generator = torch.Generator().manual_seed(0)

    def planted(values, rows, columns):
        u = torch.linalg.qr(torch.randn(rows, len(values), generator=generator, dtype=torch.float64))[0]
        v = torch.linalg.qr(torch.randn(columns, len(values), generator=generator, dtype=torch.float64))[0]
        return u @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ v.T

    weights = [planted([3.0, 1.0, 0.29], 6, 4), planted([2.0, 1e-3], 5, 6), torch.zeros(3, 5, dtype=torch.float64)]
    net = bnrank.networks.from_layers(weights, slope=0.0)
    found = spectra.weight_singular_values(net)
    assert found.ranks() == (2, 1, 0)
    assert found.ranks(rtol=0.05) == (3, 1, 0)
    assert found.ranks(rtol=1e-4) == (3, 2, 0)
    first, second, third = found.stable_ranks()
    assert first == pytest.approx((9 + 1 + 0.29**2) / 9)
    assert second == pytest.approx(1 + 0.25e-6)
    assert math.isnan(third)
    with pytest.raises(ValueError, match="rtol: got 1"):
        found.ranks(rtol=1.0)


class Logarithm(nn.Module):
    """A logarithm of negative numbers follows the layer."""

    def __init__(self, more):
        super().__init__()
        self.l, self.more = nn.Linear(6, 8), more

    def forward(self, x):
        return self.more(torch.log(self.l(x) - 100))


@pytest.mark.parametrize(
    ("more", "where"),
    [
        (nn.Identity(), "the output of the network, after layer 'l'"),
        (nn.Linear(8, 2), "activations of layer 'l', the input of layer 'more'"),
    ],
)
def test_values_that_are_not_finite_are_named_by_where_they_are(more, where):
    net, x = Logarithm(more), normal(9, 6).float()
    for call in (lambda: bnrank.profile(net, x), lambda: bnrank.compare(net, net, x)):
        with pytest.raises(ValueError, match=f"^(net|a): {where}: got NaN"):
            call()
    with torch.no_grad():
        net.double().l.weight[0, 0] = 1e308  # its own values are infinite, and named first
    with pytest.raises(ValueError, match="preactivations of layer 'l': got NaN"):
        bnrank.profile(net, 1e3 * x)


def test_errors_name_the_argument_or_the_layer():
    net, x = bnrank.MLP([3, 4, 2]), normal(5, 3)
    with torch.no_grad():
        net.weights[1][0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"layer 'layers.1': got NaN"):
        spectra.weight_singular_values(net)
    with pytest.raises(ValueError, match=r"the output of the network, after layer 'layers.1': got NaN"):
        spectra.activation_singular_values(net, x)
    with pytest.raises(ValueError, match="method: got 'svd'"):
        spectra.activation_singular_values(net, x, method="svd")
    with pytest.raises(ValueError, match="kernel: got"):
        spectra.conv_singular_values(torch.ones(3, 3), 4)
    with pytest.raises(ValueError, match="size: got 0"):
        spectra.conv_singular_values(torch.ones(1, 1, 3), 0)
    with pytest.raises(ValueError, match=r"size: got \[4, 4\], expected one integer or 1"):
        spectra.conv_singular_values(torch.ones(1, 1, 3), [4, 4])
    with pytest.raises(ValueError, match="groups: got 2"):
        spectra.conv_singular_values(torch.ones(3, 1, 3), 4, groups=2)


def test_the_global_generator_and_the_network_are_left_alone():
    net, x = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)).train(), normal(5, 3)
    random, state = torch.get_rng_state(), {k: v.clone() for k, v in net.state_dict().items()}
    first = spectra.activation_singular_values(net, x)
    assert torch.equal(first["2"], spectra.activation_singular_values(net, x, reading=read(net, x))["2"])
    assert torch.equal(random, torch.get_rng_state())
    assert net.training
    assert net[1].training
    assert all(torch.equal(state[k], v) for k, v in net.state_dict().items())


@pytest.mark.parametrize("kind", ["real", "complex", "several"])
def test_blocks_of_every_size_give_the_singular_values_of_the_whole_matrix(kind):
    for rows, columns in ((40, 7), (7, 900), (50, 49), (3, 2000), (300, 20)):
        shape = (2, rows, columns) if kind == "several" else (rows, columns)
        matrix = normal(*shape)
        matrix = matrix + 1j * normal(*shape, seed=1) if kind == "complex" else matrix
        for size in (1, 5, rows):
            pieces = spectra.Accumulator()
            for part in matrix.split(size, -2):
                given = part.clone()
                pieces.add(given)
                given.zero_()  # what is kept is a copy
            assert torch.allclose(pieces.singular_values(), torch.linalg.svdvals(matrix), rtol=1e-10)


def test_effective_rank():
    assert spectra.effective_rank(torch.ones(7)).item() == pytest.approx(7)
    assert spectra.effective_rank(torch.tensor([3.0, 1.0])).item() == pytest.approx(16 / 10)
    assert spectra.effective_rank(np.zeros((2, 3))).tolist() == [0, 0]
    for scale in (1e-320, 1e-200, 1e200):
        assert spectra.effective_rank(scale * np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])).tolist() == [2, 0]
    assert spectra.effective_rank(np.array([[3.0, 1.0], [3e200, 1e200], [3e-200, 1e-200]])).tolist() == pytest.approx(
        [1.6] * 3
    )
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match="values: got"):
            spectra.effective_rank(torch.tensor([1.0, bad]))
