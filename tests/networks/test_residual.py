"""Residual networks against their formula, their draws, and how they are trained, saved and measured."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn

import bnrank
from bnrank import networks
from bnrank._core import store
from bnrank.networks import (
    MLP,
    DiagonalBlock,
    FreeBlock,
    IdentityBlock,
    ResNetDiagonal,
    ResNetFree,
    ResNetIdentity,
    Stack,
)
from bnrank.networks.functional import Functional
from bnrank.training import GradientDescent, Record, Solver

NETS = [ResNetIdentity, ResNetDiagonal, ResNetFree]
BLOCKS = [IdentityBlock, DiagonalBlock, FreeBlock]


def sigma(z, slope):
    return torch.where(z >= 0, z, slope * z)


def block_formula(p, prefix, a, slope, after, kind):
    """Z sigma(Y a) + D a from named parameters."""
    hidden = a @ p[f"{prefix}inner.weight"].T + p.get(f"{prefix}inner.bias", 0)
    branch = sigma(hidden, slope) @ p[f"{prefix}outer.weight"].T + p.get(f"{prefix}outer.bias", 0)
    skip = p.get(f"{prefix}skip.weight")
    through = a if kind == 0 else a * skip if kind == 1 else a @ skip.T
    return sigma(branch + through, after)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    kind=st.integers(0, 2),
    blocks=st.integers(1, 3),
    sizes=st.tuples(*[st.integers(1, 4)] * 4),
    tail=st.lists(st.integers(1, 3), max_size=2),
    slope=st.sampled_from([0.0, 0.3, -0.5, 1.0]),
    after=st.sampled_from([None, 0.0, 0.2]),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_network_is_its_formula(kind, blocks, sizes, tail, slope, after, bias, seed):
    d_in, d_out, width, hidden = sizes
    net = NETS[kind](
        d_in, d_out, width, hidden, blocks, slope, tail, after, bias, seed=seed, init=0.7, dtype=torch.float64
    )
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1)  # biases too
    p = {name: q.detach() for name, q in net.named_parameters()}
    x = torch.randn(6, d_in, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    a = x @ p["input.weight"].T + p.get("input.bias", 0)
    for i in range(blocks):
        a = block_formula(p, f"block{i + 1}.", a, slope, 1.0 if after is None else after, kind)
    for name in [f"tail{i + 1}" for i in range(len(tail))] + ["output"]:
        a = a @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0)
    torch.testing.assert_close(net(x).detach(), a)
    assert any(name.endswith("bias") for name in p) == bias
    torch.testing.assert_close(fx.symbolic_trace(net)(x).detach(), a)


@pytest.mark.parametrize("kind", range(3))
def test_a_block_alone(kind):
    block = BLOCKS[kind](4, 5, slope=0.1, after=0.5, seed=3)
    p = {name: q.detach() for name, q in block.named_parameters()}
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(block(x).detach(), block_formula(p, "", x, 0.1, 0.5, kind))
    assert [name for name in p if "skip" in name] == ([] if kind == 0 else ["skip.weight"])


def test_only_a_free_block_changes_the_width():
    assert FreeBlock(4, 5, out=2)(torch.ones(3, 4)).shape == (3, 2)
    for kind in (IdentityBlock, DiagonalBlock):
        with pytest.raises(ValueError, match="out: got 2 for width 4, but only a FreeBlock"):
            kind(4, 5, out=2)


# draws


def test_he_variances_follow_what_a_weight_reads():
    net = ResNetFree(300, 200, 250, 220, 2, slope=0.5, after=0.0, tail=[240], seed=1)
    gain = {"input": 1, "block1.inner": 1, "block1.outer": 2 / 1.25, "block1.skip": 1}
    gain |= {"block2.inner": 2, "block2.outer": 2 / 1.25, "block2.skip": 2, "tail1": 2, "output": 1}
    for name, p in net.named_parameters():
        expected = math.sqrt(gain[name.removesuffix(".weight")] / p.shape[1])
        assert float(p.detach().std()) == pytest.approx(expected, rel=0.02), name
    assert bool((ResNetDiagonal(3, seed=4).block1.skip.weight == 1).all())


def test_a_number_as_init_is_the_standard_deviation_of_all_but_biases():
    net = ResNetDiagonal(200, 100, 400, 300, 1, bias=True, init=0.01, seed=2)
    for name, p in net.named_parameters():
        std = 0.0 if name.endswith("bias") else 0.01
        assert float(p.detach().square().mean().sqrt()) == pytest.approx(std, rel=0.1), name


@pytest.mark.parametrize("kind", [*NETS, lambda *a, **s: networks.Convolutional((1, 4), [2, 3], **s)])
def test_draws_depend_on_the_seed_alone_and_leave_the_global_generator(kind):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    one, two = kind(3, seed=5, dtype=torch.float64), kind(3, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(p.float(), q, rtol=0, atol=0)
    other = kind(3, seed=6)
    assert not torch.equal(next(other.parameters()), next(two.parameters()))
    assert other.reset(5) is other
    assert other.seed == 5
    for p, q in zip(other.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)
    other.reset(5, init=0.0)
    assert all(float(p.detach().abs().max()) == 0 for p in other.parameters())


def test_blocks_of_a_stack_differ_though_each_has_seed_0():
    net = Stack(FreeBlock(4, 4), FreeBlock(4, 4), seed=0)
    assert not torch.equal(net[0].inner.weight, net[1].inner.weight)
    kept = Stack(FreeBlock(4, 4), FreeBlock(4, 4), seed=None)
    assert torch.equal(kept[0].inner.weight, kept[1].inner.weight)
    assert kept.seed is None


def test_a_stack_draws_every_kind_of_part_and_keeps_what_is_frozen():
    frozen = nn.Linear(3, 5)
    frozen.requires_grad_(False)
    before = frozen.weight.clone()
    trunk = MLP([5, 200, 200], slope=0.5)
    net = Stack(frozen, trunk, nn.LeakyReLU(0.2), nn.Linear(200, 300), nn.Dropout(0.0), nn.Linear(300, 250), seed=1)
    assert torch.equal(frozen.weight, before)
    assert float(trunk.weights[1].detach().std()) == pytest.approx(math.sqrt(2 / 1.25 / 200), rel=0.03)
    assert float(net[3].weight.detach().std()) == pytest.approx(math.sqrt(2 / 1.04 / 200), rel=0.03)
    assert float(net[5].weight.detach().std()) == pytest.approx(math.sqrt(1 / 300), rel=0.03)
    assert float(net[5].bias.detach().abs().max()) == 0


def test_a_stack_refuses_what_it_cannot_draw():
    with pytest.raises(ValueError, match=r"cannot draw 1\.weight, 1\.bias"):
        Stack(nn.Linear(3, 4), nn.LayerNorm(4))
    net = Stack(nn.Linear(3, 4), nn.LayerNorm(4), seed=None)
    assert net(torch.ones(2, 3)).shape == (2, 4)
    with pytest.raises(TypeError, match=r"parts: got 3 \(int\) as 1"):
        Stack(nn.Linear(3, 4), 3)


def test_the_class_of_networks_with_a_linear_end_is_put_together_from_parts():
    """A nonlinear trunk, linear convolutions, a linear free block, linear layers (T48): linear after the trunk."""
    trunk = nn.Sequential(nn.Conv1d(1, 4, 3, bias=False), nn.ReLU())
    end = [nn.Conv1d(4, 3, 2, bias=False), nn.Conv1d(3, 2, 2, bias=False), nn.Flatten()]
    end += [FreeBlock(8, 5, slope=1, out=6), nn.Linear(6, 3, bias=False), nn.Linear(3, 1, bias=False)]
    net = Stack(*trunk, *end, seed=3).double()
    x = torch.randn(5, 1, 8, dtype=torch.float64)
    assert net(x).shape == (5, 1)
    a, b = torch.randn(2, 5, 4, 6, dtype=torch.float64)
    run = net[2:]
    torch.testing.assert_close(run(2 * a - b), 2 * run(a) - run(b))
    assert fx.symbolic_trace(net)(x).shape == (5, 1)


# training, measuring, saving


def small(kind, **arguments):
    return kind(6, **{"width": 5, "hidden": 4, "tail": [3]} | arguments)


@pytest.mark.parametrize("kind", NETS)
def test_members_of_an_ensemble_are_solo_runs_to_rounding(kind):
    task = bnrank.tasks.separable(30, 6)
    arguments = {"steps": 30, "record": 15, "progress": False, "dtype": torch.float64}
    run = bnrank.train(
        small(kind), task, ridge=[0.0, 1e-2, 0.0], seed=[4, 5, 6], optimizer=GradientDescent(0.05), **arguments
    )
    assert run.parameters[0].ne(run.parameters[2]).any()
    for i, seed in enumerate([4, 5, 6]):
        alone = bnrank.train(
            small(kind), task, ridge=[0.0, 1e-2, 0.0][i], seed=seed, optimizer=GradientDescent(0.05), **arguments
        )
        torch.testing.assert_close(run.parameters[i], alone.parameters[0], rtol=1e-10, atol=1e-12)
        same = bnrank.train(
            lambda seed: small(kind, seed=seed),
            task,
            ridge=[0.0, 1e-2, 0.0][i],
            seed=seed,
            optimizer=GradientDescent(0.05),
            **arguments,
        )
        torch.testing.assert_close(same.parameters, alone.parameters, rtol=0, atol=0)
    assert float(run.history.loss[0, -1]) < float(run.history.loss[0, 0])


def test_without_a_seed_member_0_starts_from_what_there_is():
    net = small(ResNetFree, seed=7)
    with torch.no_grad():
        net.output.weight.fill_(0.5)
    task = bnrank.tasks.separable(30, 6)
    run = bnrank.train(net, task, members=2, steps=0, progress=False)
    rows = [torch.cat([p.detach().flatten() for p in n.parameters()]) for n in (net, small(ResNetFree, seed=8))]
    torch.testing.assert_close(run.parameters, torch.stack(rows), rtol=0, atol=0)
    assert run.summary.seed.values.tolist() == [7, 8]
    rates = bnrank.train(net, task, steps=0, optimizer=GradientDescent(lr=[0.1, 0.2]), progress=False)
    torch.testing.assert_close(rates.parameters, torch.stack([rows[0]] * 2), rtol=0, atol=0)
    drawn = bnrank.train([small(ResNetFree, init=i) for i in (0.0, 0.1)], task, seed=1, steps=0, progress=False)
    assert float(drawn.parameters[0].abs().max()) == 0
    expected = small(ResNetFree, seed=2, init=0.1)
    torch.testing.assert_close(drawn.network(1)(task.x), expected(task.x))


def test_a_stack_of_ones_own_is_drawn_anew_in_an_ensemble():
    net = Stack(nn.Linear(6, 4), nn.ReLU(), FreeBlock(4, 3, slope=1), nn.Linear(4, 1), seed=None)
    run = bnrank.train(net, bnrank.tasks.separable(30, 6), members=3, steps=2, progress=False)
    assert len({tuple(row.tolist()) for row in run.parameters}) == 3


@pytest.mark.parametrize("kind", NETS)
def test_a_flow_keeps_the_invariants_of_the_linear_end(kind):
    """T45 (1): W_out^T W_out - V V^T, and T44 on the width of a block, to the tolerance of the integration."""
    task, net = bnrank.tasks.separable(30, 6), small(kind, seed=1)
    result = bnrank.flow(
        net, (task.x, task.y, "logistic"), 1.0, solver=Solver(rtol=1e-8), record=Record(spectra_every=1000)
    )
    before, after = net.double(), result.network

    def constants(net):
        p = dict(net.named_parameters())
        end = p["tail1.weight"] @ p["tail1.weight"].T - p["output.weight"].T @ p["output.weight"]
        block = p["block2.inner.weight"].square().sum(1) - p["block2.outer.weight"].square().sum(0)
        return torch.cat([end.flatten(), block]).detach()

    torch.testing.assert_close(constants(after), constants(before), rtol=1e-6, atol=1e-6)
    assert result.loss[-1] < 0.9 * result.loss[0]


@pytest.mark.parametrize("kind", NETS)
def test_measures_read_them(kind):
    task, net = bnrank.tasks.separable(30, 6), small(kind)
    ds = bnrank.profile(net, task.x, task.y)
    names = ["input", *(f"block{i}.{part}" for i in (1, 2) for part in ("inner", "outer", "skip")), "tail1", "output"]
    if kind is not ResNetFree:
        names = [name for name in names if "skip" not in name]
    assert ds.layer_name.values.tolist() == names
    for i, name in enumerate(names):
        expected = torch.linalg.svdvals(net.get_submodule(name).weight.double())
        found = ds.weight_singular_values[i].values
        np.testing.assert_allclose(found[np.isfinite(found)], expected.detach(), rtol=1e-5)
    skipped = [s.name for s in networks.read(net, task.x).skipped]
    assert skipped == (["block1.skip", "block2.skip"] if kind is ResNetDiagonal else [])


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saved_and_loaded(tmp_path, kind, dtype):
    net = small(kind, after=0.1, bias=True, slope=-0.2, dtype=dtype, seed=3, init=0.3)
    with torch.no_grad():
        net.output.weight.add_(1)
    found = bnrank.load(bnrank.save(net, tmp_path / "net.safetensors"))
    assert type(found) is kind
    assert (found.seed, found.init, found.settings) == (3, 0.3, net.settings)
    for (a, p), (b, q) in zip(net.named_parameters(), found.named_parameters(), strict=True):
        assert a == b
        torch.testing.assert_close(p, q, rtol=0, atol=0)
    x = torch.ones(2, 6, dtype=dtype)
    torch.testing.assert_close(found(x), net(x), rtol=0, atol=0)


def test_a_run_of_them_is_opened_without_the_code(tmp_path):
    task = bnrank.tasks.separable(30, 6)
    run = bnrank.train(small(ResNetFree), task, members=2, steps=3, progress=False, out=tmp_path)
    again = bnrank.Run.open(tmp_path)
    assert type(again.network(1)) is ResNetFree
    torch.testing.assert_close(again.network(1)(task.x), run.network(1)(task.x), rtol=0, atol=0)
    frozen = small(ResNetFree)
    frozen.output.weight.requires_grad_(False)
    bnrank.train(frozen, task, steps=3, progress=False, out=tmp_path / "frozen")
    with pytest.raises(ValueError, match="net: the run is of a ResNetFree"):
        bnrank.Run.open(tmp_path / "frozen")


def test_files_that_do_not_fit_and_stacks_are_refused(tmp_path):
    path = bnrank.save(small(ResNetFree), tmp_path / "net.safetensors")
    plan, tensors = store.load(path).about["plan"], {"input.weight": torch.ones(2, 2)}
    store.save(path, tensors, {"plan": plan}, "network")
    with pytest.raises(ValueError, match=r"tensors that do not fit the plan of its network: Error"):
        bnrank.load(path)
    for wrong in ("ResNetOther", 3):
        store.save(path, tensors, {"plan": {**plan, "kind": wrong}}, "network")
        with pytest.raises(ValueError, match="tensors that do not fit the plan"):
            bnrank.load(path)
    with pytest.raises(TypeError, match=r"result: got Stack, expected a bnrank\.MLP or one of ResNetIdentity"):
        bnrank.save(Stack(nn.Linear(3, 1)), tmp_path / "stack.safetensors")


def test_functional_runs_them_without_a_trace():
    net = small(ResNetDiagonal)
    x = torch.ones(2, 6)
    torch.testing.assert_close(Functional(net)(x).float(), net(x))


BAD = [
    ({"width": 0}, ValueError, "width: got 0"),
    ({"hidden": 2.5}, TypeError, "hidden: got 2.5"),
    ({"blocks": 0}, ValueError, "blocks: got 0"),
    ({"slope": 2}, ValueError, "slope: got 2"),
    ({"after": -1}, ValueError, "after: got -1"),
    ({"tail": 3}, TypeError, "tail: got 3"),
    ({"tail": [3, 0]}, ValueError, r"tail\[1\]: got 0"),
    ({"init": "xavier"}, ValueError, "init: got 'xavier'"),
    ({"init": -1.0}, ValueError, "init: got -1"),
    ({"seed": -1}, ValueError, "seed: got -1"),
    ({"d_in": 0}, ValueError, "d_in: got 0"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD, ids=[str(b[0]) for b in BAD])
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        ResNetFree(**{"d_in": 3} | arguments)


def test_every_setting_shows_in_print():
    assert "width=5, hidden=4" in repr(small(ResNetFree))
    pairs = itertools.pairwise([repr(IdentityBlock(3, 2)), repr(IdentityBlock(3, 2, after=0.5))])
    assert all(a != b for a, b in pairs)


def test_a_slice_draws_nothing_anew():
    net = ResNetFree(3, width=4, seed=7)
    with torch.no_grad():
        net.block1.inner.weight.fill_(2.0)
    part = net[:2]
    assert part[1] is net.block1
    assert torch.equal(net.block1.inner.weight, torch.full_like(net.block1.inner.weight, 2.0))
    x = torch.ones(2, 3)
    assert torch.equal(part(x), net.block1(net.input(x)))


def test_a_network_that_was_changed_is_not_saved_as_what_it_was(tmp_path):
    net = ResNetFree(3, width=4, seed=7)
    net.block1.slope = 0.5
    with pytest.raises(TypeError, match="with the parts it was built with"):
        bnrank.save(net, tmp_path / "net.safetensors")
