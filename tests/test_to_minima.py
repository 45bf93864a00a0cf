"""Measurements on the way to minima: deeper networks of the same function, and counting of evaluations."""

import contextlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import itertools

from benchmarks import continuation, to_minima
from benchmarks.pages import rewritten, store

import bnrank
from bnrank.measures.critical_points import stationarity

TASK = bnrank.tasks.low_rank_map(n=25, d_in=3, d_out=3, latent=2, rank=1, width=10, seed=0)


def _finished(depth, width=5):
    run = bnrank.train(bnrank.MLP([3, *[width] * (depth - 1), 3]), TASK, ridge=5e-3, steps=300, seed=0, progress=False)
    return bnrank.finish(run.network(0), TASK, 5e-3, births=False, progress=False)


@pytest.fixture(scope="module")
def minimum():
    return _finished(4)


@pytest.mark.parametrize("layers", [1, 3])
def test_deeper_networks_have_the_same_function_on_the_samples(minimum, layers):
    net = continuation.deeper(minimum.network, TASK.x, layers)
    x = TASK.x.double()
    assert len(net.weights) == 4 + layers
    torch.testing.assert_close(net(x), minimum.network(x), rtol=0, atol=1e-14)
    grown = sum(float(p.detach().square().sum()) for p in net.parameters())
    before = sum(float(p.detach().square().sum()) for p in minimum.network.parameters())
    # each added identity has a one per live neuron of the narrowest layer
    narrowest = min(minimum.stationarity.live)
    assert grown - before == pytest.approx(layers * narrowest)


def test_a_branch_of_minima_has_the_growth_of_its_envelope(minimum):
    found = list(continuation.branch(TASK, minimum.network, 5e-3, (4, 5, 6, 7)))
    assert [one.depth for one in found] == [4, 5, 6, 7]
    assert all(one.residual <= 1e-8 for one in found)
    for one, following in itertools.pairwise(found):
        # the identity on r neurons is allowed: the loss grows by at most lambda r per layer
        assert one.loss < following.loss <= one.loss + 5e-3 * min(stationarity(one.net, TASK, 5e-3, births=False).live)


def test_only_the_last_depths_of_one_rank_are_expanded():
    net = bnrank.MLP([1, 1])
    ranks = [(3, 3), (2, 3), (3, 2), (3, 4), (2, 2), (2, 5)]
    found = [continuation.Minimum(L, 0.0, 0.0, 0.0, "", each, (), net) for L, each in enumerate(ranks)]
    assert [one.depth for one in continuation.range_of_one_rank(found)] == [4, 5]
    assert continuation.range_of_one_rank(found[:1]) == found[:1]


def test_expansions_of_exact_norms():
    net, depths = bnrank.MLP([1, 1]), range(8, 25, 4)
    found = [
        continuation.Minimum(L, 0.1 * (2 * L + 5 + 3 / L), 2 * L + 4 + 7 / L, 0.0, "", (2,), (), net) for L in depths
    ]
    some = continuation.expansions(found, 0.1)
    assert pytest.approx([2, 4, 7]) == [some["norm"].R0, some["norm"].R1, some["norm"].R2]
    assert pytest.approx([5, 3]) == [some["loss / lambda"].R1, some["loss / lambda"].R2]


def test_the_counted_loss_is_that_of_the_measure(minimum):
    progress = to_minima.Progress(minimum.network, TASK, 5e-3, budget=10)
    assert float(progress.loss().detach()) == pytest.approx(minimum.loss, rel=1e-12)
    assert progress.evaluations == 1
    assert to_minima.least_residual(minimum.network, TASK, 5e-3) <= minimum.stationarity.residual


@pytest.mark.parametrize("name", ["Adam, cosine", "Muon, cosine", "L-BFGS (PyTorch)", "L-BFGS-B (SciPy)"])
def test_optimizers_stop_at_their_budget_and_count_every_evaluation(name):
    if name == "Muon, cosine" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    progress = to_minima.Progress(bnrank.MLP([3, 4, 3]).double(), TASK, 5e-3, budget=150)
    passes = []
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, *_: passes.append(module) if module is progress.net else None
    )
    with hook, contextlib.suppress(to_minima.BudgetError):
        to_minima.OPTIMIZERS[name][0](progress, 1e-2)
    assert len(passes) == progress.evaluations >= 100
    assert progress.evaluations <= 150 + 60  # a line search or an iteration ends before it is looked at
    evaluations, seconds, residuals = zip(*progress.seen, strict=True)
    assert list(evaluations) == sorted(evaluations)
    assert list(seconds) == sorted(seconds)
    assert np.isfinite(residuals).all()


def test_the_first_look_at_a_target_counts_and_the_best_try():
    tries = [[(100, 1.0, 0.5), (200, 2.0, 0.05), (300, 3.0, 1e-4)], [(150, 0.5, 0.09), (400, 4.0, 0.2)]]
    assert to_minima.reached(tries) == {0.1: (150, 0.5), 1e-3: (300, 3.0), 1e-8: None}


def test_rows_become_a_table_of_medians_over_the_problems_in_which_a_target_was_reached():
    ends = [
        (5, "L-BFGS (PyTorch)", ({0.1: (300, 3.0), 1e-3: None, 1e-8: None}, 2e-3)),
        (5, to_minima.OURS, ({0.1: (100, 1.0), 1e-3: (110, 1.1), 1e-8: (120, 1.2)}, 1e-10)),
        (6, to_minima.OURS, ({0.1: (200, 2.0), 1e-3: (1310, 2.1), 1e-8: None}, 3e-7)),
    ]
    rows = [json.loads(json.dumps(to_minima.kept(*end))) for end in ends]
    assert rows[0] == {"seed": 5, "optimizer": "L-BFGS (PyTorch)", "reached": [[300, 3.0], None, None], "least": 2e-3}
    assert to_minima.shown(rows).splitlines()[2:] == [
        "| bnrank, default and finish | 2 of 2: 1.5 s (1.0 to 2.0), 150 evaluations "
        "| 2 of 2: 1.6 s (1.1 to 2.1), 710 evaluations | 1 of 2: 1.2 s (1.2 to 1.2), 120 evaluations | 1.5e-07 |",
        "| L-BFGS (PyTorch) | 1 of 1: 3.0 s (3.0 to 3.0), 300 evaluations | 0 of 1 | 0 of 1 | 2.0e-03 |",
    ]


def test_optimizers_compared_on_one_problem_are_stored(tmp_path, monkeypatch, capsys):
    small = bnrank.MLP([3, 3, 3]).double(), TASK, 5e-3
    monkeypatch.setattr(to_minima, "problem", lambda seed: small)
    one = "L-BFGS-B (SciPy)"
    monkeypatch.setattr(to_minima, "OPTIMIZERS", {one: to_minima.OPTIMIZERS[one]})
    argv = ["to_minima", "--seeds", "7", "8", "--budget", "150", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", argv)
    to_minima.main()
    store(tmp_path, tmp_path / "results")
    text = rewritten("<!-- results: optimizers minima_optimizers -->\n<!-- end of results -->", tmp_path / "results")
    table = capsys.readouterr().out.partition("after seed 7\n")[2].strip()
    assert table.count("| 1 of 1: ") >= 3  # bnrank reaches every target
    assert table in text
    assert "`python -m benchmarks.to_minima --seeds 7 8 --budget 150`, " in text


def test_finishing_counts_forward_passes_and_leaves_the_class_as_it_was(minimum):
    before = to_minima.second_order.Evaluation.__init__
    with to_minima.counted() as count:
        bnrank.cost.stationarity(minimum.network, TASK, 5e-3, births=False)
    assert count[0] >= 1
    assert to_minima.second_order.Evaluation.__init__ is before
