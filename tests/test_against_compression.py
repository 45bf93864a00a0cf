"""What else makes networks smaller, against slow and obvious versions, and what the tables say of invented results."""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bnrank.discovery.compression import multiply_adds

sys.path.insert(0, str(Path(__file__).parents[1]))

import functools

from benchmarks.against import (
    compression,
    compression_cases,
    compression_models,
    compression_peers,
    compression_picture,
    trials,
)

import helpers

normal = functools.partial(helpers.normal, dtype=torch.float32)


def chain(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5))
    return net.eval().requires_grad_(False)


def convolutions(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        parts = [nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU()]
        net = nn.Sequential(*parts, nn.Flatten(), nn.Linear(32, 4))
    return net.eval().requires_grad_(False)


KINDS = [(chain, (6,)), (convolutions, (1, 4, 4))]


def dense_oracle(net, x, removed):
    """Run a network in which neurons or channels give zero, without taking anything out."""
    hidden = compression_peers.layers(net)[:-1]
    for part in net:
        x = part(x)
        if part in hidden:
            x = x.clone()
            x[:, removed[hidden.index(part)]] = 0
    return x


@pytest.mark.parametrize(("make", "shape"), KINDS)
def test_neurons_of_least_norm_are_taken_out_and_the_rest_computes_the_same(make, shape):
    net, x = make(), normal(7, *shape)
    small = compression_peers.neurons(net, x, 0.6)
    removed = []
    for layer in compression_peers.layers(net)[:-1]:
        norms = layer.weight.flatten(1).norm(dim=1)
        removed.append(norms.argsort()[: len(norms) - round(0.6 * len(norms))])
    widths = [len(layer.weight) for layer in compression_peers.layers(small)]
    kept = [round(0.6 * len(layer.weight)) for layer in compression_peers.layers(net)[:-1]]
    assert widths == [*kept, len(compression_peers.layers(net)[-1].weight)]
    assert torch.allclose(small(x), dense_oracle(net, x, removed), atol=1e-6)


def test_single_entries_of_least_size_become_zero_and_are_not_counted():
    net, x = chain(), normal(3, 6)
    small = compression_peers.finished(compression_peers.entries(net, x, 0.25))
    before = torch.cat([p.flatten() for p in net.parameters()])
    least = before.abs().sort().values[len(before) - round(0.25 * len(before))]
    for p, q in zip(net.parameters(), small.parameters(), strict=True):
        assert torch.equal(q, torch.where(p.abs() >= least, p, 0.0))
    size, work = compression_peers.costs(small, x, sparse=True)
    assert size == sum(int((p != 0).sum()) for p in small.parameters()) == round(0.25 * len(before))
    assert work == sum(int((layer.weight != 0).sum()) for layer in compression_peers.layers(small))
    assert compression_peers.costs(small, x) == compression_peers.costs(net, x) == (len(before), multiply_adds(net, x))


@pytest.mark.parametrize(("make", "shape"), KINDS)
@pytest.mark.parametrize("name", ["truncated SVD", "truncated SVD on data"])
def test_factors_are_the_layers_projected_on_the_first_axes(make, shape, name):
    """Against the SVD of W, and of W C^{1/2} with C formed, layer by layer and for inputs as the layer sees them."""
    net, x = make(), normal(500, *shape)
    made = compression_peers.layers(compression_peers.PEERS[name].shrink(net, x, 0.55))
    given = x
    pairs = 0
    for part in net:
        if part in compression_peers.layers(net):
            whole = part
            first = made.pop(0)
            if first.bias is None:
                second, pairs = made.pop(0), pairs + 1
                rows = rows_of(whole, given).double()
                expected, mean = by_hand(whole, rows, len(first.weight), on_data=name.endswith("data"))
                got = rows_of_outputs(second(first(given)))
                assert torch.allclose(got.double(), rows @ expected.T + mean, atol=1e-5)
            else:
                assert torch.equal(first.weight, whole.weight)
        given = part(given)
    assert pairs >= 1
    assert not made


def rows_of(layer, given):
    if isinstance(layer, nn.Linear):
        return given
    return nn.functional.unfold(given, 3, padding=1).movedim(1, -1).flatten(0, 1)


def rows_of_outputs(out):
    return out if out.ndim == 2 else out.flatten(2).movedim(1, -1).flatten(0, 1)


def by_hand(layer, rows, rank, on_data):
    weight, bias = layer.weight.flatten(1).double(), layer.bias.double()
    if not on_data:
        u, s, v = torch.linalg.svd(weight, full_matrices=False)
        return u[:, :rank] * s[:rank] @ v[:rank], bias
    values, vectors = torch.linalg.eigh(torch.cov(rows.T, correction=0))
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    u = torch.linalg.svd(weight @ root)[0][:, :rank]
    matrix = u @ u.T @ weight
    return matrix, bias + (weight - matrix) @ rows.mean(0)


def test_no_rank_below_leaves_out_less_than_asked_for():
    net, cut = chain(), 0.3
    for layer, rank in zip(compression_peers.layers(net), ranks(net, cut), strict=True):
        s = torch.linalg.svdvals(layer.weight.double()).square()
        assert s[rank:].sum() <= cut**2 * s.sum() < s[rank - 1 :].sum()


def ranks(net, cut):
    """Return the ranks that are taken; every layer is made two, as no pair is larger than a layer of many rows."""
    found = []
    for layer in compression_peers.layers(net):
        wide = nn.Linear(10_000, len(layer.weight))
        u, s, _ = torch.linalg.svd(layer.weight.double(), full_matrices=False)
        frames = [(u, s.square(), torch.zeros(len(u)).double())]
        found.append(len(compression_peers.factored(nn.Sequential(wide), frames, cut)[0].weight))
    return found


def test_torch_pruning_takes_neurons_out_for_good():
    pytest.importorskip("torch_pruning")
    for make, shape in KINDS:
        net, x = make(), normal(5, *shape)
        sizes = [
            compression_peers.costs(compression_peers.graph_pruned(net, x, kept), x)[0] for kept in (0.9, 0.5, 0.2)
        ]
        assert sizes[0] > sizes[1] > sizes[2]
        assert compression_peers.graph_pruned(net, x, 0.5)(x).shape == net(x).shape


def test_layers_with_heads_are_found():
    attention, block = nn.MultiheadAttention(8, 2), compression_models.Block(8, 4)
    found = compression_peers.heads(nn.Sequential(attention, nn.Linear(8, 8), block))
    assert found == {attention: 2, block.query: 4, block.key: 4, block.value: 4}


def test_fine_tuning_lowers_the_error_keeps_zeros_and_leaves_the_network_alone():
    net, x = chain(), normal(60, 6)
    for name in ("magnitude, single entries", "magnitude, neurons", "truncated SVD"):
        cut = compression_peers.PEERS[name].shrink(net, x, 0.4)
        before = compression_peers.finished(cut)
        after = compression_peers.finished(compression_peers.fine_tuned(cut, x, net(x), 40))
        assert (after(x) - net(x)).norm() < 0.9 * (before(x) - net(x)).norm()
        assert compression_peers.costs(after, x, True)[0] <= compression_peers.costs(before, x, True)[0]
    wild = compression_peers.fine_tuned(before, x, net(x), 5, rates=(1e6,))
    assert torch.equal(wild(x), before(x))  # what is no better is not taken


@pytest.mark.parametrize("good", range(9))
def test_bisection_asks_about_the_strongest_that_will_do(good):
    asked = []
    compression_peers.find_strongest(lambda i: asked.append(i) or i < good, 8)
    assert {i for i in (good - 1, good) if 0 <= i < 8} <= set(asked)
    assert len(asked) <= 4


def test_cells_are_json_seed_by_seed_and_at_least_ten_each():
    cells = compression.cells(False)
    affordable = [name for name, case in compression_cases.CASES.items() if case.tuning]
    assert json.loads(json.dumps(cells)) == cells
    for seed, some in itertools.groupby(cells, key=lambda c: c["seed"]):
        assert [c["case"] for c in some] == affordable, seed
    assert len({c["seed"] for c in cells}) >= 10
    assert {c["tuned"] for c in cells} == {True, False}
    assert len(compression.cells(True)) < len(cells) / 5


@pytest.fixture(scope="module")
def measured():
    """A small network with a bottleneck, and classes, through every method."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(2, 8, generator=generator)
    layers = [
        torch.cat([u, -u, torch.zeros(16, 8)]),
        torch.eye(20),
        torch.eye(20),
        torch.rand(5, 20, generator=generator),
    ]
    net = nn.Sequential(*[p for w in layers for p in (nn.Linear(*w.shape[::-1]), nn.ReLU())][:-1])
    for layer, w in zip(compression_peers.layers(net), layers, strict=True):
        layer.weight.data = w + 0.02 * torch.randn(w.shape, generator=generator)
        layer.bias.data = torch.zeros(len(w))
    net.requires_grad_(False)
    x, held_out = normal(100, 8, seed=1), normal(80, 8, seed=2)
    trained = compression_cases.Trained(net, x, held_out, net(held_out).argmax(1), "planted")
    patch = pytest.MonkeyPatch()
    patch.setattr(compression, "TOLERANCES", (0.01, 0.02, 0.05))
    patch.setattr(compression, "MORE", ())
    patch.setattr(compression, "STEPS", 10)
    patch.setattr(compression, "REPEATS", 2)
    patch.setitem(
        compression_cases.CASES, "F4", compression_cases.Case("planted", lambda seed: trained, own_tuning=True)
    )
    cell = compression.cells(True)[0]
    results = json.loads(json.dumps(compression.measure(cell)))
    patch.undo()
    return net, trained, cell, results


def test_a_cell_is_measured_from_end_to_end(measured):
    net, _, _, results = measured
    assert [r["method"] for r in results] == ["bnrank", "bnrank, tune=200", *compression_peers.PEERS]
    by_name = {r["method"]: r for r in results}
    assert not [r["failed"] for r in results if "failed" in r and not r["failed"].startswith("not installed")]
    ours = by_name["bnrank"]
    assert ours["dense"]["parameters"] == sum(p.numel() for p in net.parameters())
    assert ours["dense"]["accuracy"] == 1
    assert ours["best"]["0.05"]["cut"]["parameters"] < 400
    assert ours["best"]["0.05"]["cut"]["speed"] > 0
    assert set(ours["best"]) == {"0.01", "0.02", "0.05", "accuracy"}
    assert list(by_name["bnrank, tune=200"]["best"]) == ["0.02"]


def test_of_a_finished_method_only_the_best_networks_are_kept(measured):
    """So that a large network fits the memory: every strength of every method is a copy of it."""
    contest = compression.Contest(measured[1], tuning=False)
    result = contest.attempt("plain", lambda: contest.peer("truncated SVD on data"))
    best = [both["cut"] for both in result["best"].values() if both["cut"]]
    assert best
    assert len(result["points"]) == 32
    assert set(contest.networks) == {point["number"] for point in best} < {p["number"] for p in result["points"]}
    for point in best:
        size, _ = compression_peers.costs(contest.networks[point["number"]], contest.x, False)
        assert size == point["parameters"]
    before = dict(contest.networks)

    def fails():
        contest.noted(contest.net, 0.0, False)
        raise ValueError

    assert contest.attempt("fails", fails)["failed"] == "ValueError: "
    assert contest.networks == before


def test_a_target_that_is_missed_is_tried_once_more(measured, monkeypatch):
    """Networks whose change is the tolerance but at 2.2 percent, where it is 2.4: that is tried again."""
    contest = compression.Contest(measured[1], tuning=False)
    given = []
    monkeypatch.setattr(contest, "compressed", lambda tol, tune: given.append(tol) or tol)
    changes = {0.022: 0.024, 0.2: 0.3}
    monkeypatch.setattr(contest, "noted", lambda tol, strength, tuned: {"change": changes.get(tol, tol / 1.1)})
    found = contest.own_near_targets((0.2,))
    again = 0.022 * compression.AGAIN * 0.02 / 0.024
    assert given == pytest.approx([0.011, 0.022, again, 0.055, 0.2])
    assert found["kept"] == {"0.011": True, "0.022": False, "0.055": True, "0.2": False}


def test_the_best_of_a_target_is_the_smallest_that_meets_it(measured):
    results, choices = measured[-1], 0
    for result in [r for r in results if "points" in r]:
        for target, both in result["best"].items():
            for how, found in both.items():
                good = [
                    p["parameters"]
                    for p in result["points"]
                    if (p["accuracy"] >= 0.998 if target == "accuracy" else p["change"] <= float(target))
                    and (how == "tuned" or not p["fine_tuned"])
                    and p["parameters"] < result["dense"]["parameters"]
                ]
                assert (found["parameters"] if found else None) == min(good, default=None)
                choices += len(set(good)) > 1
    assert choices >= 4


def test_a_change_is_that_of_the_held_out_outputs_relative_to_their_spread(measured):
    net, trained, _, results = measured
    svd = next(r for r in results if r["method"] == "truncated SVD")
    point = next(p for p in svd["points"] if not p["fine_tuned"] and p["change"] > 0.01)
    small = compression_peers.truncated(net, trained.x, point["strength"])
    before, after = net(trained.held_out).detach(), small(trained.held_out).detach()
    assert point["change"] == pytest.approx(float((after - before).norm() / (before - before.mean(0)).norm()), rel=1e-4)


def invented(case="digits, no ridge", tuned=False):
    """Ten seeds: bnrank 4 times fewer, one peer 2 times (8 with fine-tuning), another never within the target."""
    dense = {"parameters": 800, "multiply_adds": 600, "accuracy": 0.9, "milliseconds": 1.0}
    lines = []
    for seed in range(10):
        for method, cut, fine in (("bnrank", 200, 200), ("good", 400, 100), ("bad", None, None)):
            made = [
                size and {"parameters": size, "multiply_adds": size, "speed": 800 / size, "change": 0.01}
                for size in (cut, fine)
            ]
            best = {"0.02": dict(zip(("cut", "tuned"), made, strict=True))}
            line = {"seed": seed, "case": case, "tuned": tuned, "method": method, "dense": dense, "data": "invented"}
            lines.append({**line, "best": best, **({"kept": {"0.02": seed > 0}} if method == "bnrank" else {})})
        lines.append({"seed": seed, "case": case, "tuned": tuned, "method": "gone", "failed": "not installed (gone)"})
    return lines


def lines_of_equals():
    """Return results in which all methods give the same."""
    lines = [line for line in invented("F1") if line["method"] in ("bnrank", "good")]
    return [{**line, "best": lines[0]["best"]} for line in lines]


def test_tables_say_what_was_gained_lost_and_kept():
    text = compression.tables(invented() + invented("F4", tuned=True))
    assert "| digits, no ridge | 2 % | 2 [2, 2] | 10 / 0 / 0 | good | **0.5 [0.5, 0.5]** | 0 / 0 / 10 | good |" in text
    assert "| F4 † | 2 % | 2 [2, 2] |" in text
    assert "| digits, no ridge | 0.90 [0.60, 0.98] |" in text
    even = [line for line in lines_of_equals() if line["seed"] < 4]
    assert "| F1 | 2 % | 1 [1, 1] | 0 / 4 / 0 | good |" in compression.tables(even)
    assert "| good | fine-tuned | 8 [8, 8] | 6 [6, 6] | 8 [8, 8] |" in text
    assert "| bad | as cut | 1 [1, 1] | 1 [1, 1] | 1 [1, 1] |" in text
    assert "| gone | failed on 10: not installed (gone) | – | – | – |" in text
    assert "10 seeds; 800 parameters" in text
    assert compression.tables([]) == "Nothing measured yet."


def test_gains_of_each_seed():
    lines = invented()
    assert compression_picture.gains(lines, "good", "0.02", "tuned") == dict.fromkeys(range(10), 8.0)
    assert compression_picture.gains(lines, "bad", "0.02", "cut", "speed") == dict.fromkeys(range(10), 1.0)
    assert compression_picture.gains(lines, "good", "0.01", "cut") == {}


def test_the_picture_shows_medians_and_ranges(measured, tmp_path, monkeypatch):
    point = {"strength": 0.1, "fine_tuned": False}
    lines = [
        {"method": "bnrank", "seed": seed, "case": "F4", "dense": {"parameters": 100},
         "points": [{**point, "parameters": p, "change": c}, {**point, "fine_tuned": True, "parameters": 1}]}
        for seed, (p, c) in enumerate([(10, 0.3), (20, 0.1), (40, 0.2)])
    ]  # fmt: skip
    assert np.allclose(compression_picture.curve(lines, "bnrank"), [[0.2, 0.2, 0.1, 0.3]])
    *_, cell, results = measured
    stored, out = tmp_path / "compression.jsonl", tmp_path / "out.png"
    stored.write_text(json.dumps({"cell": cell, "results": results}) + "\n")
    monkeypatch.setattr("sys.argv", ["compression_picture", str(stored), str(out)])
    compression_picture.main()
    assert out.read_bytes()[:4] == b"\x89PNG"


def test_what_is_measured_is_not_measured_again(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(compression, "measure", lambda cell: asked.append(cell) or [{"method": "m", "failed": "no"}])
    for _ in range(2):
        trials.run("compression", tmp_path, quick=True, package="benchmarks.against")
    assert asked == compression.cells(True)


@pytest.mark.parametrize("name", ["digits, no ridge", "digits, convolutions"])
def test_networks_are_plain_chains_that_learned_something(name, monkeypatch):
    steps = compression_cases._plain_adam
    monkeypatch.setattr(compression_cases, "_plain_adam", lambda n, x, y, r, s, seed: steps(n, x, y, r, 100, seed))
    state = torch.get_rng_state()
    one, again = (compression_cases.CASES[name].trained(100) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, q) for p, q in zip(one.net.parameters(), again.net.parameters(), strict=True))
    assert float((one.net(one.held_out).argmax(1) == one.labels).double().mean()) > 0.8
    allowed = {nn.Linear, nn.Conv2d, nn.ReLU, nn.AvgPool2d, nn.Flatten}
    assert {type(part) for part in one.net} <= allowed


def test_on_heavy_networks_a_peer_stops_at_hopeless_strengths(monkeypatch):
    net, x = chain(), normal(40, 6)
    trained = compression_cases.Trained(net, x, normal(30, 6), None, "normal")
    light = compression.Contest(trained, tuning=False)
    assert not light.heavy
    monkeypatch.setattr(compression, "HEAVY", 100)
    heavy = compression.Contest(trained, tuning=False)
    name = "magnitude, neurons"
    every, few = (contest.peer(name)["points"] for contest in (light, heavy))
    assert len(every) == len(compression_peers.PEERS[name].strengths) > len(few)
    assert few == every[: len(few)]
    assert [point["change"] > compression.HOPELESS for point in few] == [False] * (len(few) - 1) + [True]
