"""F2: its claims on planted networks, what it measures against plain counts, and a tiny run."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import bnrank
from bnrank.figures.f02_class_regions import computation
from bnrank.figures.f02_class_regions import figure as f02
from bnrank.figures.harness.training import start_as_pytorch
from bnrank.measures.regions import tripoints
from bnrank.networks.mlp import from_layers
from bnrank.tasks import Task

PLAIN = tripoints(from_layers([torch.eye(2)]), [0.0, 0.0], [1.0, 0.0], [0.0, 1.0])


def one(depth=2, ridge=0.0, seed=0, accuracy=1.0, reach=(), complete=True):
    return computation.Classifier(
        depth=depth,
        start=computation.PYTORCH,
        ridge=ridge,
        seed=seed,
        task=None,
        same=1.0,
        regions=dataclasses.replace(PLAIN, complete=complete),
        reach=np.array(reach, float),
        spread=np.array([0.5] * (depth - 1)),
        row={"correct, training": accuracy},
    )


def planted(**changed):
    """Five seeds of each kind; ``changed`` is for one of them: its kind, and what is different."""
    kinds = {"shallow": (2, 0.0), "shallow_l2": (2, 0.1), "deep": (9, 0.0), "deep_l2": (9, 0.1)}
    found = []
    for name, (depth, ridge) in kinds.items():
        reach = (0.8, 7.0) if depth == 2 else ()
        found += [one(depth, ridge, seed, reach=reach) for seed in range(5)]
        for seed, change in changed.get(name, {}).items():
            found[seed - 5] = one(depth, ridge, seed, **{"reach": reach, **change})
    return found


NONE = {"reach": ()}


def fails(found):
    return [i for i, claim in enumerate(f02.claims(found, 3.0)) if not claim.passed]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"shallow": {0: {"accuracy": 0.98}}}, [0]),
        ({"deep_l2": {4: {"accuracy": 0.25}}}, [0]),
        ({"deep": {1: {"complete": False}}}, [1]),
        ({"shallow": {0: NONE, 1: NONE}}, []),  # three of five are most
        ({"shallow": {0: NONE, 1: NONE, 2: NONE}}, [2]),
        ({"shallow": {seed: {"reach": (1.1,)} for seed in range(3)}}, [2]),  # outside the data's box
        ({"shallow_l2": {0: NONE, 1: NONE, 2: NONE}}, [3]),
        ({"deep": {3: {"reach": (2.9, 5.0)}}}, []),  # one in five may
        ({"deep": {3: {"reach": (2.9, 5.0)}, 4: {"reach": (0.9,)}}}, [4]),
        ({"deep": {seed: {"reach": (3.1,)} for seed in range(5)}}, []),
        ({"deep_l2": {0: {"reach": (0.4,)}, 2: {"reach": (2.0,)}}}, [5]),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_claims(changed, expected, first):
    found = planted(**changed)
    assert fails(found if first else found[::-1]) == expected


def test_claims_give_shares():
    share = f02.claims(planted(shallow={0: NONE}, deep={1: {"reach": (1, 2)}}), 3.0)
    assert [str(share[i].measured) for i in (2, 4)] == ["0.8 (4 of 5; 4 tripoints)", "0.2 (1 of 5; 2 tripoints)"]


def planted_net():
    """Three classes that meet in (0, 1/2) behind a layer that passes x on; activations lie in a plane."""
    eye = torch.eye(2)
    first = torch.cat([eye, -eye])
    sites = torch.tensor([[0.0, 1.5], [0.8, -0.1], [-0.8, -0.1]])  # at distance 1 from the point
    net = from_layers([first, torch.cat([sites, -sites], 1)], [torch.zeros(4), -(sites**2).sum(1) / 2])
    return net, sites


def test_what_is_measured_of_a_network():
    net, sites = planted_net()
    x = torch.tensor([[0.4, -0.2], [-0.4, -0.2], [0.0, 0.2], [0.3, 0.1]], dtype=torch.float64)
    task = Task(x, torch.tensor([1, 2, 0, 1]), loss="cross_entropy", name="planted")
    last = SimpleNamespace(seed=3, cost=0.5, parameter_norm=7.0)
    about = {"seed": 3, "start": computation.HE, "ridge": 0.1, "same": 0.5}
    found = computation.look(net, task, last, computation.Settings(far=5.0), **about)
    assert (found.depth, found.kind, found.seed) == (2, "depth 2, with L2, He start", 3)
    nearest = (sites - x[:, None].float()).norm(dim=2).argmin(1)
    assert found.row["correct, training"] == float((nearest == task.y).double().mean())
    assert math.isnan(found.row["correct, test"])
    np.testing.assert_allclose(found.reach, [2.5], rtol=1e-6)  # the box reaches from -0.2 to 0.2
    assert (found.within(2.4), found.within(2.6)) == (0, 1)
    assert found.row["smallest distance to a sample"] == pytest.approx(0.3, rel=1e-6)
    weights = [found.row[f"s_{i}"] for i in (1, 2, 3)]
    np.testing.assert_allclose(weights, np.linalg.svd(net.weights[1].detach().numpy())[1][:3], atol=1e-6)
    assert (found.row["cross-entropy"], found.row["||theta||^2"]) == (0.5, 7.0)
    h = torch.cat([x, -x], 1).relu().numpy()
    values = np.linalg.svd(h - h.mean(0))[1]
    np.testing.assert_allclose(found.spread, [values[1] / values[0]], rtol=1e-6)
    low, high = x.amin(0), x.amax(0)
    corner = (low + high) / 2 + 5 * (high - low) / 2
    assert torch.allclose(torch.cat(found.regions.cells).amax(0), corner)


def test_agreement_is_a_share_of_the_box():
    task = Task(torch.tensor([[-1.0, -1.0], [3.0, 1.0]]), torch.tensor([0, 1]), loss="cross_entropy", name="planted")
    above_two = from_layers([torch.tensor([[0.0, 0.0], [1.0, 0.0]])], [torch.tensor([0.0, -2.0])])  # class 1: x_1 > 2
    all_first = from_layers([torch.zeros(2, 2)], [torch.tensor([0.0, -1.0])])
    above_two, all_first = above_two.float(), all_first.float()
    assert computation.agreement(above_two, all_first, task) == pytest.approx(0.75)
    assert computation.agreement(above_two, above_two, task) == 1


def test_the_start_is_that_of_torch():
    """Bounds, and the deviation of a uniform distribution, in every layer; other weights for another seed."""
    net = bnrank.MLP([2, 300, 300, 4], init="he", seed=0)
    start_as_pytorch(net, 5)
    plain = [torch.nn.Linear(*sizes) for sizes in ((2, 300), (300, 300), (300, 4))]
    for layer, other in zip(net.layers, plain, strict=True):
        for name in ("weight", "bias"):
            ours, theirs = getattr(layer, name), getattr(other, name)
            assert ours.abs().max() <= layer.in_features**-0.5
            if ours.numel() >= 300:
                assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.1)
                assert abs(ours.mean().item()) < 0.1 * layer.in_features**-0.5
    first = net.weights[1].detach().clone()
    start_as_pytorch(net, 6)
    assert not torch.equal(first, net.weights[1])
    start_as_pytorch(net, 5)
    assert torch.equal(first, net.weights[1])


TINY = {
    "samples": 40,
    "depths": (2, 3),
    "width": 6,
    "ridge": 1e-3,
    "seeds": (3, 4),
    "steps": (60, 40),
    "steps_ridge": 30,
    "times": 3.0,
    "far": 10.0,
    "control": 1,
}


def test_a_tiny_run(tmp_path):
    assert set(TINY) == set(vars(f02.FIGURE.settings["quick"]))
    outcome = f02.FIGURE.run("quick", tmp_path, progress=False, **TINY)
    assert outcome.error == ""
    assert len(outcome.claims) == 6
    assert set(outcome.pictures) == {"class-regions", "every-seed", "further-out"} == set(outcome.captions)
    shares, rows = (section.rows for section in outcome.sections)
    kinds = [f"depth {d}, {w} L2" for d in (2, 3) for w in ("no", "with")]
    kinds += [f"depth 3, {w} L2, He start (control)" for w in ("no", "with")]
    assert [row["networks"] for row in shares] == kinds
    assert [row["seeds"] for row in shares] == [2] * 4 + [1] * 2
    assert [row["seed"] for row in rows] == [3, 3, 4, 4] * 2 + [3, 3]
    for depth, row, start in ((2, rows[2], "pytorch-4"), (3, rows[4], "pytorch-3"), (3, rows[8], "he-3")):
        task = bnrank.tasks.s_shapes(40, seed=int(start[-1]), n_test=40, heights="normal")
        run = bnrank.Run.open(tmp_path / "class-regions" / "runs" / f"depth-{depth}-{start}")
        net = run.network(0)
        assert row["correct, test"] == pytest.approx(float((net(task.x_test).argmax(1) == task.y_test).double().mean()))
        center, half = (task.x.amax(0) + task.x.amin(0)).double() / 2, (task.x.amax(0) - task.x.amin(0)).double() / 2
        inside = tripoints(net, center, half * torch.tensor([1.0, 0]), half * torch.tensor([0, 1.0]), (-3, 3))
        assert row["tripoints, reach 3"] == len(inside)
    assert outcome.settings["seeds"] == (3, 4)
