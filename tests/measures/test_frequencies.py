"""Frequencies against the dense matrices of the operators, conjugated with a Fourier matrix written out."""

import itertools

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bnrank
from bnrank import frequencies, spectra
from bnrank.measures.frequencies import profiled
from bnrank.networks import CircularConvolutional
from helpers import normal
from oracles import circular_convolution_matrix

SHAPES = [((2, 5), 3), ((2, 6), 6), ((3, 4, 4), 3), ((2, 3, 4), [2, 4])]


def network(shape, channels=(3, 4, 2), kernel=3, **arguments):
    return CircularConvolutional(shape, list(channels), kernel, seed=2, dtype=torch.float64, slope=0.1, **arguments)


def fourier(size, w):
    """The unitary Fourier component w of images of a size, as a row vector: loops over the pixels."""
    pixels = itertools.product(*map(range, size))
    phases = [sum(a * p / n for a, p, n in zip(w, pixel, size, strict=True)) for pixel in pixels]
    return np.exp(-2j * np.pi * np.array(phases)) / np.sqrt(np.prod(size))


def vectors(size):
    return {name: w for name, w in zip(frequencies.grid(size).names, frequencies.grid(size).vectors, strict=True)}


def planted(size, transfers, c_out, c_in):
    """A kernel as large as the image whose block at frequency w (and its mirror) is the given matrix, else 0."""
    blocks = np.zeros((c_out, c_in, *size), dtype=complex)
    for w, block in transfers.items():
        blocks[(slice(None), slice(None), *w)] = block
        blocks[(slice(None), slice(None), *(-a for a in w))] = np.conj(block)
    kernel = np.fft.ifftn(blocks, axes=tuple(range(2, blocks.ndim)))
    assert np.abs(kernel.imag).max() < 1e-12
    return torch.from_numpy(kernel.real)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=3))
def test_every_frequency_or_its_mirror_is_named_once(size):
    found = frequencies.grid(size)
    seen = []
    for w, times in zip(found.vectors, found.multiplicity, strict=True):
        places = {tuple(sign * a % n for a, n in zip(w, size, strict=True)) for sign in (1, -1)}
        assert len(places) == times
        assert all(-n / 2 < a <= n / 2 for a, n in zip(w, size, strict=True))
        seen += places
    assert sorted(seen) == sorted(itertools.product(*map(range, size)))
    assert len(set(found.names)) == len(found.names)
    np.testing.assert_allclose(found.modulus, [np.linalg.norm(w) for w in found.vectors])
    assert list(found.modulus) == sorted(found.modulus)


def test_names_as_they_are_read():
    assert frequencies.grid(5).names == ("0", "1", "2")
    assert frequencies.grid((4, 4)).names == (
        *("(0, 0)", "(0, 1)", "(1, 0)", "(1, 1)", "(1, -1)", "(0, 2)", "(2, 0)"),
        *("(1, 2)", "(2, 1)", "(2, 2)"),
    )
    assert frequencies.grid((4, 4)).multiplicity == (1, 2, 2, 2, 2, 1, 1, 2, 2, 1)
    with pytest.raises(ValueError, match="size: got 0"):
        frequencies.grid((3, 0))
    with pytest.raises(ValueError, match="size: got none"):
        frequencies.grid(())


@pytest.mark.parametrize(("shape", "kernel"), SHAPES)
def test_values_are_those_of_the_blocks_of_the_dense_matrix(shape, kernel):
    net, size = network(shape, kernel=kernel), shape[1:]
    found = frequencies.weight_singular_values(net, normal(2, *shape))
    assert found.layer_name.values.tolist() == ["conv1", "conv2", "conv3"]
    assert found.attrs["skipped"] == found.attrs["notes"] == ""
    xr.testing.assert_identical(found, frequencies.weight_singular_values(net, size=size))
    for i, conv in enumerate((net.conv1, net.conv2, net.conv3)):
        c_out, c_in = conv.weight.shape[:2]
        dense = circular_convolution_matrix(conv.weight.detach(), size).numpy()
        dense = dense.reshape(c_out, np.prod(size), c_in, np.prod(size))
        for name, w in vectors(size).items():
            for sign in (1, -1):
                row = fourier(size, [sign * a for a in w])
                block = np.einsum("p,opiq,q->oi", row, dense, row.conj())
                values = found.values[i, list(found.frequency.values).index(name)]
                np.testing.assert_allclose(
                    values[: min(c_out, c_in)], np.linalg.svd(block, compute_uv=False), atol=1e-12
                )
                assert np.isnan(values[min(c_out, c_in) :]).all()


@pytest.mark.parametrize(("shape", "kernel"), SHAPES)
def test_with_their_multiplicities_they_are_all_values_and_count_the_rank(shape, kernel):
    net, size = network(shape, kernel=kernel), shape[1:]
    some = list(vectors(size).values())[:2]
    with torch.no_grad():
        net.conv2.weight.zero_()
        if kernel == max(size) or kernel == list(size):
            matrices = {w: normal(4, 3, seed=i).numpy() for i, w in enumerate(some)}
            net.conv2.weight.copy_(planted(size, matrices, 4, 3))
    found = frequencies.weight_singular_values(net, normal(2, *shape))
    flat = spectra.weight_singular_values(net, normal(2, *shape))
    ranks = frequencies.rank(found, 1e-9)
    for i, conv in enumerate((net.conv1, net.conv2, net.conv3)):
        every = np.repeat(found.values[i], found.multiplicity.values, axis=0).ravel()
        every = np.sort(every[~np.isnan(every)])[::-1]
        np.testing.assert_allclose(every, flat[f"conv{i + 1}"], rtol=1e-12, atol=1e-13)
        dense = circular_convolution_matrix(conv.weight.detach(), size)
        assert float((ranks[i] * ranks.multiplicity).sum()) == torch.linalg.matrix_rank(dense)


def bottleneck_network():
    """Layers 2 to 4 keep frequency 0 in one channel and frequency 1 in two; layer 3 also turns them."""
    net = CircularConvolutional((1, 6), [4, 4, 4, 4, 1], 6, bias=False, dtype=torch.float64, seed=3)
    turn = np.array([[0, -1], [1, 0]])
    with torch.no_grad():
        for i, block in enumerate((np.eye(2), np.exp(0.3j) * turn, 0.9 * np.eye(2)), 2):
            one = np.zeros((4, 4), dtype=complex)
            one[:2, :2] = block
            zero, three = np.diag([0, 1.1, 0, 0]), np.diag([0.05, 0, 0, 0])
            net.get_submodule(f"conv{i}").weight.copy_(planted((6,), {(0,): zero, (1,): one, (3,): three}, 4, 4))
    return net


def test_the_frequencies_that_a_bottleneck_keeps_are_named():
    net = bottleneck_network()
    values = frequencies.weight_singular_values(net, size=6)
    found = frequencies.kept(values)
    assert (found.start, found.end, found.rank, found.reason) == (2, 4, 5, "")
    assert found.frequencies == (frequencies.KeptFrequency("0", 1, 1), frequencies.KeptFrequency("1", 2, 2))
    assert str(found) == "layers 2 to 4, rank 5: 0 in 1 channel, ±1 in 2 channels"
    assert frequencies.kept(values, 3, 3, atol=0.01).rank == 6
    assert frequencies.kept(values, 3, 4, atol=0.95).frequencies == (frequencies.KeptFrequency("0", 1, 1),)
    assert str(frequencies.kept(values, 3, 3, atol=5.0)) == "layers 3 to 3, rank 0: nothing"
    none = frequencies.kept(values / 3)
    assert (none.start, none.rank, none.frequencies) == (None, None, ())
    assert str(none) == "no bottleneck: no layer has a clear gap"


def test_layers_of_a_bottleneck_are_numbered_among_all_of_the_network():
    images = bottleneck_network()
    net = nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (1, 6)), *images).double()
    values = frequencies.weight_singular_values(net, normal(3, 6))
    found = frequencies.kept(values)
    alone = frequencies.kept(frequencies.weight_singular_values(images, size=6))
    assert (found.start, found.end, found.frequencies) == (3, 5, alone.frequencies)


def test_a_frequency_counts_with_the_least_number_of_channels_over_the_layers():
    net = CircularConvolutional((2, 4), [2, 2], 4, bias=False, dtype=torch.float64)
    with torch.no_grad():
        net.conv1.weight.copy_(planted((4,), {(1,): np.eye(2), (2,): np.diag([1, 0])}, 2, 2))
        net.conv2.weight.copy_(planted((4,), {(1,): np.diag([0, 1]), (0,): np.eye(2)}, 2, 2))
    values = frequencies.weight_singular_values(net, size=4)
    assert frequencies.kept(values, 1, 2).frequencies == (frequencies.KeptFrequency("1", 1, 2),)
    assert frequencies.rank(values).values.tolist() == [[0, 2, 1], [2, 1, 0]]


def test_a_bottleneck_is_found_in_all_values_a_pair_counting_twice():
    net = CircularConvolutional((1, 4), [1, 1], 4, bias=False, dtype=torch.float64)
    with torch.no_grad():
        net.conv1.weight.copy_(planted((4,), {(1,): np.eye(1)}, 1, 1))
        net.conv2.weight.copy_(planted((4,), {(0,): np.eye(1), (2,): np.eye(1)}, 1, 1))
    found = frequencies.kept(frequencies.weight_singular_values(net, size=4))  # rank 2 twice, but of other frequencies
    assert (found.start, found.end, found.rank, found.frequencies) == (1, 2, 0, ())


def test_what_is_assumed_and_left_out():
    net = nn.Sequential(
        nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular"),
        nn.BatchNorm1d(2),
        nn.Conv1d(2, 2, 3, padding=1),
        nn.Conv1d(2, 4, 3, padding=1, groups=2, padding_mode="circular"),
        nn.Conv1d(4, 2, 2, stride=2, padding_mode="circular"),
        nn.Conv1d(2, 2, 1),
        nn.Flatten(),
        nn.Linear(6, 2),
    ).double()
    found = frequencies.weight_singular_values(net, normal(3, 1, 6))
    assert found.layer.values.tolist() == [1, 2, 3]
    assert found.attrs["notes"] == "2: computed for circular padding, the layer pads with zeros"
    first, *others = found.attrs["skipped"].splitlines()
    assert first.startswith("1 (BatchNorm1d): normalization")
    assert others == [
        "4 (Conv1d): frequencies: with stride (2,) those that alias share their singular values",
        "5 (Conv1d): frequencies: its images have size (3,), those of the first (6,)",
        "7 (Linear): frequencies: a linear layer has none",
    ]
    grouped = torch.block_diag(*(net[3].weight[i : i + 2, :, 0] for i in (0, 2))).detach()
    alone = nn.Sequential(nn.Conv1d(2, 4, 1, groups=2)).double()
    with torch.no_grad():
        alone[0].weight.copy_(net[3].weight[:, :, :1])
    values = frequencies.weight_singular_values(alone, size=6).values[0]
    np.testing.assert_allclose(values, np.tile(torch.linalg.svdvals(grouped), (4, 1)), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda v: frequencies.weight_singular_values(bnrank.MLP([3, 2])), ValueError, "found no convolution .*linear"),
        (lambda v: frequencies.weight_singular_values(network((2, 5))), ValueError, "give an example x or a size"),
        (lambda v: frequencies.weight_singular_values(network((2, 5)), size=[5, 5]), ValueError, "size: got"),
        (lambda v: frequencies.rank(v.values), TypeError, "values: got ndarray"),
        (lambda v: frequencies.rank(v[0]), ValueError, "values: got dimensions"),
        (lambda v: frequencies.rank(v, -1), ValueError, "atol: got -1"),
        (lambda v: frequencies.kept(v, 1), ValueError, "start, end: got one"),
        (lambda v: frequencies.kept(v, 3, 2), ValueError, "start, end: got 3 and 2"),
    ],
)
def test_bad_input_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call(frequencies.weight_singular_values(network((2, 5)), size=5))


def test_the_profile_of_a_circular_network(tmp_path, monkeypatch):
    net, x = bottleneck_network(), normal(50, 1, 6)
    ds = bnrank.profile(net, x)
    xr.testing.assert_equal(
        ds.frequency_singular_values.drop_vars("layer_kind"), frequencies.weight_singular_values(net, x)
    )
    np.testing.assert_array_equal((ds.frequency_rank * ds.multiplicity).sum("frequency"), ds.weight_rank)
    every = np.repeat(ds.frequency_singular_values.values[2], ds.multiplicity.values, axis=0).ravel()
    np.testing.assert_allclose(np.sort(every)[::-1], ds.weight_singular_values.values[2][: every.size], atol=1e-12)
    assert (ds.attrs["bottleneck_start"], ds.attrs["bottleneck_end"], ds.attrs["bottleneck_rank"]) == (2, 4, 5)
    assert ds.kept_channels.to_series()[ds.kept_channels.values > 0].to_dict() == {"0": 1, "1": 2}
    assert int((ds.kept_channels * ds.multiplicity).sum()) == 5
    assert "kept_reason" not in ds.attrs
    assert bnrank.measures.describe(ds) == []
    ds.to_netcdf(tmp_path / "p.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "p.nc", engine="h5netcdf") as back:
        xr.testing.assert_equal(back, ds)
    monkeypatch.setattr(profiled, "MAX_FREQUENCY_VALUES", 10)
    small = bnrank.profile(net, x)
    assert "frequency_rank" not in small
    assert bnrank.measures.describe(small) == [
        "skipped the module itself (CircularConvolutional): frequency_singular_values: 84 numbers, the limit is 10; "
        "bnrank.frequencies.weight_singular_values returns them"
    ]


def test_a_profile_without_circular_convolutions_has_none_and_a_mixed_one_says_what_is_missing():
    zeros = bnrank.networks.Convolutional((1, 6), [2, 2])
    for net, x in ((bnrank.MLP([6, 3, 2]), normal(5, 6)), (zeros, normal(5, 1, 6))):
        ds = bnrank.profile(net, x)
        assert not {"frequency", "channel", "multiplicity", "frequency_rank"} & {*ds.dims, *ds.variables}
        assert not {"kept_channels", "kept_reason"} & {*ds.variables, *ds.attrs}
    mixed = nn.Sequential(
        nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular"),
        nn.Conv1d(2, 3, 2, stride=2),
        nn.Flatten(),
        nn.Linear(9, 2),
    )
    with torch.no_grad():
        for i, p in enumerate(mixed.parameters()):
            p.copy_(normal(*p.shape, seed=i))
    ds = bnrank.profile(mixed, normal(5, 1, 6))
    assert np.isfinite(ds.frequency_rank.values).all(1).tolist() == [True, False, False]
    stride = "1: frequencies: with stride (2,) those that alias share their singular values"
    assert bnrank.measures.describe(ds)[-1] == stride
    assert not ds.kept_channels.any()
    assert ds.attrs["kept_reason"] == ds.attrs["bottleneck_reason"]


def test_sizes_beyond_memory_and_arrays_without_numbers_are_refused():
    net = bnrank.networks.CircularConvolutional((1, 4), [1])
    with pytest.raises(ValueError, match=r"size: got .* expected a size that fits into the memory"):
        bnrank.frequencies.weight_singular_values(net, size=10**12)
    with pytest.raises(ValueError, match="values: got no number"):
        bnrank.frequencies.rank(bnrank.frequencies.weight_singular_values(net, size=4) * float("nan"))
