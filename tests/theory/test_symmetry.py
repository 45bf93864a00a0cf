"""Symmetries, autoencoders and classifiers of low rank (T17)."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank.networks.mlp import from_layers
from bnrank.theory.constructions import line_interpolant
from bnrank.theory.symmetry import classes_on_line, narrowest_layer, projection, rank_bound, rank_one_parts
from helpers import normal

DOUBLE = torch.float64


def rotations(d, *planes):
    found = []
    for i, j in planes:
        a = torch.zeros(d, d)
        a[i, j], a[j, i] = 1.0, -1.0
        found.append(a)
    return found


class Radial(nn.Module):
    """Depends on the norm of the first k inputs and on the rest."""

    def __init__(self, k):
        super().__init__()
        self.k = k
        self.net = bnrank.MLP([4, 10, 3], slope=0.3, seed=0)

    def forward(self, x):
        r = x[:, : self.k].norm(dim=1, keepdim=True)
        rest = nn.functional.pad(x[:, self.k :], (0, 3 - x.shape[1] + self.k))
        return self.net(torch.cat([r, rest], 1))


def test_translations_along_the_kernel_of_the_first_layer():
    net = bnrank.MLP([6, 4, 8, 5], slope=0.2, seed=0)
    kernel = torch.linalg.svd(net.weights[0].detach().double())[2][4:]
    found = rank_bound(net, normal(20, 6), [(torch.zeros(6, 6), v) for v in kernel])
    assert found.invariant
    assert found.invariance < 1e-12
    assert found.orbit_dimensions.tolist() == [2] * 20
    assert (found.ranks <= found.bounds).all()
    assert found.bounds.tolist() == [4] * 20
    assert int(found.ranks.max()) == 4


def test_rotations_leave_one_dimension():
    x = normal(10, 5)
    planes = list(itertools.combinations(range(5), 2))
    found = rank_bound(Radial(5), x, rotations(5, *planes))
    assert found.invariant
    assert (found.bounds.tolist(), found.ranks.tolist()) == ([1] * 10, [1] * 10)
    mixed = rank_bound(Radial(3), x, rotations(5, (0, 1), (1, 2)))
    assert mixed.invariant
    assert (mixed.bounds.tolist(), mixed.ranks.tolist()) == ([3] * 10, [3] * 10)


def test_brackets_are_added():
    """Two rotations about one point generate SO(3)."""
    found = rank_bound(Radial(3), normal(4, 3), rotations(3, (0, 1), (1, 2)))
    assert len(found.generators) == 3
    assert found.generators.shape == (3, 3, 4)
    where = torch.tensor([[1.0, 0.0, 0.0]])  # here one field moves, the other does not, and their bracket does
    found = rank_bound(Radial(3), where, rotations(3, (0, 1), (1, 2)))
    assert found.orbit_dimensions.tolist() == [2]


def test_brackets_that_are_rounding_are_not_added():
    """Two rotations that commute, in planes askew to the axes: their bracket is 1e-17, not 0."""
    turn = torch.linalg.qr(normal(4, 4))[0].double()
    found = rank_bound(Radial(4), normal(3, 4), [turn @ a.double() @ turn.T for a in rotations(4, (0, 1), (2, 3))])
    assert len(found.generators) == 2
    assert found.orbit_dimensions.tolist() == [2] * 3


def test_orbits_are_points_at_a_fixed_point():
    net = from_layers([torch.ones(1, 2), torch.ones(2, 1)])
    about = torch.tensor([1.0, 2.0])  # rotation about this point: A x - A c
    (a,) = rotations(2, (0, 1))
    found = rank_bound(net, torch.stack([about, about + 1]), [(a, -a @ about)])
    assert found.orbit_dimensions.tolist() == [0, 1]
    assert found.bounds.tolist() == [2, 1]


def test_what_is_no_symmetry_is_reported():
    net = bnrank.MLP([3, 8, 2], seed=0)
    found = rank_bound(net, normal(6, 3), rotations(3, (0, 1)))
    assert not found.invariant
    assert found.invariance > 1e-2
    assert rank_bound(net, normal(6, 3), rotations(3, (0, 1)), invariance_rtol=2.0).invariant


def test_a_constant_function_has_every_symmetry():
    net = from_layers([torch.zeros(3, 2), torch.zeros(2, 3)])
    found = rank_bound(net, normal(3, 2), [torch.eye(2), (torch.zeros(2, 2), torch.ones(2))])
    assert found.invariance == 0
    assert found.ranks.tolist() == [0] * 3


def test_bad_generators_are_named():
    net, x = bnrank.MLP([3, 2]), torch.ones(2, 3)
    with pytest.raises(ValueError, match="generators: got none"):
        rank_bound(net, x, [])
    with pytest.raises(ValueError, match="generators: got none, or only zeros"):
        rank_bound(net, x, [torch.zeros(3, 3)])
    with pytest.raises(ValueError, match=r"generators\[1\]: got Tensor of shape \(2, 2\)"):
        rank_bound(net, x, [torch.eye(3), torch.eye(2)])
    with pytest.raises(ValueError, match=r"generators\[0\]"):
        rank_bound(net, x, [(torch.eye(3), torch.full((3,), torch.nan))])


def bent_autoencoder():
    """Depth 3, hidden dimension 1: gives back the points of two half-lines at an angle, at s = -x_2 + 2 along them."""
    knots = torch.tensor([0.0, 2.0, 4.0], dtype=DOUBLE)
    curve = torch.tensor([[1.0, 2.0], [0.0, 0.0], [2.0, -2.0]], dtype=DOUBLE)
    slopes = (curve[1:] - curve[:-1]) / (knots[1:] - knots[:-1])[:, None]
    change = torch.stack([slopes[0], slopes[1] - slopes[0]], 1)
    return from_layers(
        [torch.tensor([[0.0, -1.0]]), torch.ones(2, 1), change], [torch.full((1,), 2.0), -knots[:2], curve[0]]
    )


def test_an_autoencoder_of_the_rank_of_the_data_projects_and_denoises():
    net = bent_autoencoder()
    data = torch.tensor([[0.5, 1.0], [0.25, 0.5], [0.5, -0.5], [1.5, -1.5]], dtype=DOUBLE)
    found = projection(net, data)
    assert found.errors.max() < 1e-12
    assert found.ranks.tolist() == [1] * 4
    assert found.defects.max() < 1e-12
    noisy = data + 0.1 * normal(4, 2)
    denoised = net(noisy).detach()  # back on the curve: its two lines
    assert torch.where(denoised[:, 1] > 0, 2 * denoised[:, 0] - denoised[:, 1], denoised.sum(1)).abs().max() < 1e-12


def test_networks_that_do_not_project():
    x = normal(5, 3)
    linear = from_layers([2 * torch.eye(3)])
    found = projection(linear, x)
    assert torch.allclose(found.defects, torch.ones(5, dtype=DOUBLE))  # ||4 I - 2 I|| / ||2 I||
    assert torch.allclose(found.errors, x.norm(dim=1))
    j = torch.autograd.functional.jacobian
    net = bnrank.MLP([3, 9, 3], slope=-0.5, seed=1)
    deep = net.double()
    jacobians = [j(lambda s: deep(s[None])[0], p) for p in x]
    expected = [float((a @ a - a).norm() / a.norm()) for a in jacobians]
    assert projection(net, x).defects.tolist() == pytest.approx(expected)
    assert projection(from_layers([torch.zeros(3, 3)]), x).defects.tolist() == [0.0] * 5
    with pytest.raises(ValueError, match="net: got 2 outputs, expected as many as inputs, 3"):
        projection(bnrank.MLP([3, 2]), x)


def test_narrowest_layer():
    assert narrowest_layer([torch.eye(3), torch.diag(torch.tensor([2.0, 0.5, 0.1])), torch.eye(2, 3)]) == (2, 0.25)
    assert narrowest_layer([torch.eye(3), torch.ones(4, 3), torch.zeros(2, 4)])[0] in (2, 3)
    assert narrowest_layer([torch.ones(1, 5)]) == (1, 0.0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("slope", [0.0, 0.3, -0.5])
def test_the_hidden_line_decides_the_class(seed, slope):
    net = bnrank.MLP([3, 7, 1, 9, 6, 5], slope=slope, seed=seed, dtype=DOUBLE)
    with torch.no_grad():
        for i, b in enumerate(net.biases):
            b.copy_(normal(len(b), seed=seed + i))
    x = 3 * normal(20000, 3, seed=seed)
    found = classes_on_line(net, x)
    assert found.layer == 2
    z, _ = rank_one_parts(net, x, 2)
    assert (float(z.min()), float(z.max())) == (found.lower, found.upper)
    with torch.no_grad():
        classes = net(x).argmax(1)
    assert torch.equal(found.classes[torch.searchsorted(found.boundaries, z)], classes)
    assert (found.classes[1:] != found.classes[:-1]).all()
    assert found.tied.tolist() == [2] * len(found.boundaries)


def test_no_tripoint_in_the_input_space_of_a_rank_one_classifier():
    """Around no point of a fine grid do three classes meet; around some points of a wide classifier they do."""

    def most_classes_around(net):
        t = torch.linspace(-3, 3, 301, dtype=DOUBLE)
        grid = torch.cartesian_prod(t, t)
        with torch.no_grad():
            classes = net.double()(grid).argmax(1).reshape(301, 301).numpy()
        corners = np.stack([classes[:-1, :-1], classes[1:, :-1], classes[:-1, 1:], classes[1:, 1:]])
        return max(len(set(c)) for c in corners.reshape(4, -1).T)

    x, labels = normal(30, 2), torch.arange(30) % 4
    narrow = line_interpolant(x, torch.eye(4, dtype=DOUBLE)[labels], 6)
    found = classes_on_line(narrow, x)
    assert len(found.boundaries) > 10
    assert (found.tied >= 2).all()
    wide = from_layers([torch.tensor([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])])
    assert most_classes_around(wide) == 3
    bent = from_layers(
        [torch.tensor([[0.7, 0.4], [-0.3, 1.0], [0.2, 0.8]]), torch.tensor([[1.0, -0.7, 0.4]]), torch.zeros(3, 1)],
        [torch.tensor([0.3, -0.2, 0.1]), torch.zeros(1), torch.zeros(3)],
    )
    with torch.no_grad():
        bent.weights[2].copy_(torch.tensor([[0.0], [1.0], [2.0]]))
        bent.biases[2].copy_(torch.tensor([0.0, -0.4, -1.6]))
    assert classes_on_line(bent, 2 * x).classes.tolist() in ([0, 1, 2], [2, 1, 0])
    assert most_classes_around(bent) == 2


def test_three_outputs_that_tie_at_a_point():
    weights = [torch.ones(1, 1), torch.tensor([[0.0], [1.0], [2.0]])]
    net = from_layers(weights, [torch.zeros(1), torch.tensor([0.0, -1.0, -2.0])])
    found = classes_on_line(net, torch.tensor([[0.0], [3.0]]))
    assert (found.classes.tolist(), found.boundaries.tolist(), found.tied.tolist()) == ([0, 2], [1.0], [3])


def test_a_constant_classifier_has_one_class():
    net = from_layers([torch.ones(1, 2), torch.zeros(3, 1)], [torch.zeros(1), torch.tensor([0.0, 1.0, 1.0])])
    found = classes_on_line(net, torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    assert (found.classes.tolist(), found.boundaries.tolist()) == ([1], [])


def test_classes_on_line_refuses_what_has_no_line():
    x = normal(5, 3)
    with pytest.raises(ValueError, match="net: got s_2 / s_1 = "):
        classes_on_line(bnrank.MLP([3, 5, 4]), x)
    with pytest.raises(ValueError, match="net: got 1 output"):
        classes_on_line(bnrank.MLP([3, 5, 1]), x)
    with pytest.raises(ValueError, match="x: got samples with one and the same z"):
        classes_on_line(bnrank.MLP([3, 1, 4]), torch.ones(2, 3))
    with pytest.raises(TypeError, match="net: got"):
        classes_on_line(nn.Sequential(nn.Conv2d(1, 1, 1)), x)
