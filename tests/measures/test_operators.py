import re

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank._core import linalg
from bnrank.measures import describe, operators, spectra
from bnrank.networks import read
from helpers import normal
from oracles import float64

CASES = {
    "zeros": (lambda: nn.Conv2d(2, 3, 3, padding=1), (6, 7)),
    "valid": (lambda: nn.Conv2d(2, 3, 3), (6, 7)),
    "stride": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), (7, 6)),
    "odd stride": (lambda: nn.Conv1d(2, 4, 3, stride=2), (8,)),
    "groups": (lambda: nn.Conv2d(4, 2, 3, dilation=2, groups=2, padding=2), (6, 5)),
    "depthwise": (lambda: nn.Conv2d(3, 3, 5, padding=2, groups=3), (6, 6)),
    "reflect": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (6, 6)),
    "replicate": (lambda: nn.Conv2d(2, 3, 3, padding=2, padding_mode="replicate"), (5, 6)),
    "wide circle": (lambda: nn.Conv2d(2, 3, 3, padding=2, padding_mode="circular"), (6, 6)),
    "same": (lambda: nn.Conv1d(2, 3, 4, padding="same"), (30,)),
    "cube": (lambda: nn.Conv3d(1, 2, 2, padding=1), (3, 4, 3)),
    "kernel of the image": (lambda: nn.Conv2d(2, 3, 4), (4, 4)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1), (4, 5)),
    "transposed, padded beyond its stride": (
        lambda: nn.ConvTranspose2d(2, 4, 3, dilation=2, output_padding=1),
        (5, 5),
    ),
    "transposed line": (lambda: nn.ConvTranspose1d(4, 6, 3, dilation=2, groups=2), (9,)),
}
DISJOINT = {
    "patches": (lambda: nn.Conv2d(2, 3, 2, stride=2), (6, 6)),
    "patches and a rest": (lambda: nn.Conv2d(2, 30, 2, stride=2), (7, 7)),
    "gaps": (lambda: nn.Conv2d(4, 2, 2, stride=3, groups=2), (7, 8)),
    "points": (lambda: nn.Conv1d(2, 3, 1, stride=2), (7,)),
    "transposed patches": (lambda: nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), (5, 4)),
}


def measured(cases, name, monkeypatch, dense=2e9, lanczos=1e9):
    """Return the values, the note and the singular values of the matrix, column by column."""
    monkeypatch.setattr(operators, "DENSE_WORK", dense)
    monkeypatch.setattr(operators, "LANCZOS_WORK", lanczos)
    torch.manual_seed(0)
    make, size = cases[name]
    conv = make()
    found, note = operators.layer_singular_values(
        read(nn.Sequential(conv), normal(2, conv.in_channels, *size)).layers[0]
    )
    copied, count = float64(conv), conv.in_channels * int(np.prod(size))
    basis = torch.eye(count, dtype=torch.float64).view(count, conv.in_channels, *size)
    with torch.no_grad():
        columns = [(copied(image[None]) - copied(torch.zeros_like(image[None]))).flatten() for image in basis]
    return found, note, torch.linalg.svdvals(torch.stack(columns))


@pytest.mark.parametrize("name", CASES)
def test_small_operators_are_exact(name, monkeypatch):
    found, note, dense = measured(CASES, name, monkeypatch)
    assert note == ""
    assert found.shape == dense.shape
    assert torch.allclose(found, dense, atol=1e-12)


def test_the_matrix_is_formed_from_blocks_of_images(monkeypatch):
    monkeypatch.setattr(operators, "BLOCK_ENTRIES", 500)
    for name in ("zeros", "stride", "groups", "transposed line"):
        found, note, dense = measured(CASES, name, monkeypatch)
        assert note == ""
        assert torch.allclose(found, dense, atol=1e-12)


@pytest.mark.parametrize("name", DISJOINT)
def test_patches_that_do_not_overlap_are_exact_at_any_size_without_the_matrix(name, monkeypatch):
    found, note, dense = measured(DISJOINT, name, monkeypatch, 0, 0)
    assert note == ""
    assert torch.allclose(found, dense[: len(found)], atol=1e-12)
    assert float(dense[len(found) :].abs().max() if len(dense) > len(found) else 0) < 1e-12


@pytest.mark.parametrize("name", CASES)
def test_large_operators_have_upper_bounds_for_every_singular_value(name, monkeypatch):
    found, note, dense = measured(CASES, name, monkeypatch, 0, 0)
    assert note.startswith("upper bounds: singular values of a circular convolution on larger images; ")
    assert note.endswith("stable rank is a lower bound")
    assert found.shape == dense.shape
    assert bool((found >= dense - 1e-12).all())
    assert bool((found.diff() <= 0).all())
    assert float(found[0]) < 3 * float(dense[0])  # and not empty ones


@pytest.mark.parametrize("name", ["zeros", "valid", "reflect", "wide circle", "depthwise"])
def test_the_largest_values_of_large_operators_are_exact(name, monkeypatch):
    monkeypatch.setattr(operators, "SUBSPACE", 20)
    found, note, dense = measured(CASES, name, monkeypatch, 0)
    assert note.startswith("the 6 largest are exact, the others are upper bounds")
    assert torch.allclose(found[:6], dense[:6], rtol=1e-7)
    assert bool((found >= dense - 1e-9).all())
    assert bool((found.diff() <= 1e-12).all())


@pytest.mark.parametrize("name", [*CASES, *DISJOINT])
def test_the_norm_is_that_of_the_matrix_with_every_padding(name, monkeypatch):
    dense = measured(CASES | DISJOINT, name, monkeypatch)[2]
    torch.manual_seed(0)
    make, size = (CASES | DISJOINT)[name]
    conv = make()
    layer = read(nn.Sequential(conv), normal(2, conv.in_channels, *size)).layers[0]
    assert operators._operator(layer, None)[0].squared_norm() == pytest.approx(float(dense.square().sum()), rel=1e-12)


def test_stable_ranks_do_not_take_bounds_for_singular_values(monkeypatch):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Flatten()), normal(3, 4, 9, 9)
    exact = float(bnrank.profile(net, x).stable_rank[0])
    monkeypatch.setattr(operators, "DENSE_WORK", 0)
    found = spectra.weight_singular_values(net, x)
    assert found.stable_ranks()[0] == pytest.approx(exact, rel=1e-6)
    assert float(linalg.stable_rank(found["0"])) > 1.05 * exact  # that of the bounds
    assert float(bnrank.profile(net, x).stable_rank[0]) == pytest.approx(exact, rel=1e-6)


def test_bounds_are_marked_in_spectra_and_profile(monkeypatch):
    monkeypatch.setattr(operators, "DENSE_WORK", 0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 2, stride=2), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1), nn.Flatten())
    x = normal(5, 1, 8, 8)
    notes = spectra.weight_singular_values(net, x).notes
    assert notes.pop("0") == operators.DISJOINT
    assert set(notes) == {"2"}
    assert re.match("upper bounds|the 6 largest", notes["2"])
    assert any(line.startswith(f"2: {notes['2']}") for line in describe(bnrank.profile(net, x)))


def test_a_kernel_or_padding_that_does_not_fit_is_named():
    layer = read(nn.Conv2d(1, 2, 5)).layers[0]
    assert operators.layer_singular_values(layer, 3) == (None, "the kernel is larger than images of size (3, 3)")
    layer = read(nn.Conv2d(1, 2, 3, padding=3, padding_mode="reflect")).layers[0]
    assert operators.layer_singular_values(layer, 3) == (None, "its padding is larger than images of size (3, 3)")
    layer = read(nn.Conv1d(1, 2, 3)).layers[0]
    assert "depends on the image size" in operators.layer_singular_values(layer)[1]
    with torch.no_grad():
        layer.weight[0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match="net: layer 'weight': kernel: got NaN"):
        operators.layer_singular_values(layer, 8)
