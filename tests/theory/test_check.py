"""Every statement on one network: what a user gets."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import bnrank
from bnrank import constructions
from bnrank.networks import LinearNetwork
from bnrank.theory import STATEMENTS
from bnrank.theory.facts import Facts
from bnrank.theory.verdicts import Verdict
from theory_entries import KEYS

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(30, 3, generator=GENERATOR)


def trained(net, task, ridge, steps):
    run = bnrank.train(net, task, ridge=ridge, steps=steps, seed=0, dtype=torch.float64, progress=False)
    return run.network(0)


def linear():
    task = bnrank.tasks.low_rank_map(n=60, d_in=4, d_out=4, latent=3, rank=2, seed=0)
    return trained(LinearNetwork([4, 5, 5, 4]), task, 1e-2, 400), task.x, task.y, 1e-2


def deep():
    task = bnrank.tasks.low_rank_map(n=60, d_in=6, d_out=6, latent=4, rank=2, seed=0)
    return trained(bnrank.MLP([6] + [12] * 7 + [6]), task, 1e-3, 400), task.x, task.y, 1e-3


def leaky():
    task = bnrank.tasks.low_rank_map(n=60, d_in=4, d_out=3, latent=3, rank=1, seed=1)
    return trained(bnrank.MLP([4, 8, 8, 3], slope=-0.5, bias=False), task, 1e-2, 400), task.x, task.y, 1e-2


def scalar():
    x = torch.randn(40, 2, generator=GENERATOR, dtype=torch.float64)
    y = x[:, :1].relu()
    return trained(bnrank.MLP([2, 6, 6, 1]), bnrank.Task(x, y), 1e-2, 600), x, y, 1e-2


def classifier():
    task = bnrank.tasks.s_shapes(n=60, seed=0)
    return trained(bnrank.MLP([2, 10, 10, task.d_out]), task, 1e-3, 300), task.x, task.y, 1e-3


def orthant():
    x = torch.rand(30, 3, generator=GENERATOR, dtype=torch.float64)
    return constructions.identity(3, 6), x, x, 1e-3


def convolution():
    torch.manual_seed(0)  # of the layers' own initialization
    module = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.ReLU(), nn.Flatten())
    module.append(nn.Linear(32, 2))
    return module, torch.randn(10, 1, 4, 4, generator=GENERATOR), None, None


def dead():
    net = bnrank.MLP([3, 4, 4, 2])
    with torch.no_grad():
        net.weights[1].zero_()
        net.biases[1].fill_(-1.0)
    return net, X, None, None


NETWORKS = {
    "linear": linear,
    "deep": deep,
    "leaky": leaky,
    "scalar": scalar,
    "classifier": classifier,
    "identity": orthant,
    "convolution": convolution,
    "dead": dead,
    "one sample": lambda: (bnrank.MLP([3, 5, 2]), X[:1], X[:1, :2], 0.1),
    "one layer": lambda: (bnrank.MLP([3, 2], bias=False), X, X[:, :2], 0.1),
    "zero": lambda: (bnrank.MLP([3, 5, 2], init=0.0), X, X[:, :2], 0.1),
    "constant": lambda: (bnrank.MLP([3, 5, 2], init=0.0), torch.ones(5, 3), torch.ones(5, 2), 0.1),
    "slope": lambda: (bnrank.MLP([3, 6, 6, 2], slope=0.3, seed=1), X, X[:, :2], None),
    "float32": lambda: (bnrank.MLP([3, 50, 50, 50, 2], seed=1), X, X[:, :2], 1e-3),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("rtol", [1e-6, 0.0])
def test_no_statement_is_violated(name, rtol):
    net, x, y, ridge = NETWORKS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnrank.measures.KinkWarning)
        verdicts = bnrank.check(net, x, y, ridge, rtol=rtol)
    assert [v.id for v in verdicts] == [s.id for s in STATEMENTS]
    assert not verdicts.having("violated"), str(verdicts)
    assert all(v.reason for v in verdicts if v.status in ("not applicable", "inconclusive"))
    assert all(v.slack == v.slack for v in verdicts if v.status == "holds")  # a number


def test_at_a_minimum_what_assumes_one_applies():
    net, x, y, ridge = linear()
    verdicts = bnrank.check(net, x, y, ridge)
    for id_ in ("T2", "T3", "T4", "T7", "T8", "T14", "T21", "T24"):
        assert verdicts[id_].status == "holds", str(verdicts)
    assert verdicts["T2"].right - verdicts["T2"].left < 1e-6 * verdicts["T2"].right  # the ridge finds the least norm


def test_each_statement_says_where_it_comes_from_and_what_it_compares():
    for statement in STATEMENTS:
        assert statement.name
        assert any(sign in statement.formula for sign in ("<=", "=")), statement
        begins = (*sorted(KEYS), "T", "E", "theory")
        assert statement.source.startswith(begins), f"{statement.source} must begin with one of {', '.join(begins)}"


def test_only_some_statements():
    verdicts = bnrank.check(bnrank.MLP([3, 5, 2]), X, only="T4")
    assert [v.id for v in verdicts] == ["T4"]
    assert isinstance(verdicts["T4"], Verdict)
    assert {v.id for v in bnrank.check(bnrank.MLP([3, 5, 2]), X, only=["T14", "T4"])} == {"T4", "T14"}
    with pytest.raises(ValueError, match=r"only: got 't4x'.*; did you mean 'T4'\?"):
        bnrank.check(bnrank.MLP([3, 5, 2]), X, only="t4x")
    with pytest.raises(TypeError, match="only: got 4"):
        bnrank.check(bnrank.MLP([3, 5, 2]), X, only=4)


def test_the_network_and_the_data_are_described():
    about = bnrank.check(bnrank.MLP([3, 5, 2], slope=0.3), X, X[:, :2], 0.1, only="T4", max_samples=10).about
    assert (about["depth"], about["widths"], about["slope"]) == (2, [3, 5, 2], 0.3)
    assert (about["samples"], about["samples checked"]) == (30, 10)
    assert about["largest rank of Jf"] == 2
    assert about["stationarity"] > 0.01
    assert "Tanh" in bnrank.check(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), X, only="T4").about["not a chain"]


def test_the_network_is_left_as_it_was():
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)).train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    state = torch.get_rng_state()
    bnrank.check(net, X, X[:, :2], 0.1)
    assert torch.equal(state, torch.get_rng_state())
    assert net.training
    assert net[2].training
    assert all(torch.equal(value, net.state_dict()[key]) for key, value in before.items())
    assert all(p.grad is None for p in net.parameters())


def test_the_same_call_gives_the_same_numbers():
    net = bnrank.MLP([3, 8, 8, 2], seed=3)
    first, second = (bnrank.check(net, X, X[:, :2], 0.1) for _ in range(2))
    assert str(first) == str(second)


def test_planted_norm_and_jacobian_violate_what_is_about_them():
    facts = Facts(bnrank.MLP([3, 8, 8, 2], seed=3), X, X[:, :2], 0.1)
    by_id = {s.id: s for s in STATEMENTS if s.id in ("T4", "T7")}
    for statement in by_id.values():
        assert statement(facts).status == "holds"
        assert statement(facts.altered(parameter_norm=1e-3)).status == "violated"
        assert statement(facts.altered(jacobian_values=1e3 * facts.jacobian_values)).status == "violated"


def test_the_document_lists_the_statements():
    text = (Path(__file__).parents[2] / "docs" / "verdicts.md").read_text()
    rows = ["| id | statement | what is compared | source |", "| --- | --- | --- | --- |"]
    for s in STATEMENTS:
        formula = s.formula.replace("|", "\\|")
        rows.append(f"| {s.id} | {s.name} | `{formula}` | {s.source} |")
    missing = [row for row in rows if row not in text]
    assert not missing, "add to docs/verdicts.md: " + "\n".join(missing)
    assert "\n".join(rows) in text, "the table of docs/verdicts.md has other rows, or another order"
