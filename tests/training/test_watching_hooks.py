"""The hooks of a watch: they are in no copy, file or compiled code of a network, and stop no pass."""

import copy
import io
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank._core import identity
from bnrank.networks import functional
from bnrank.training.watching.live import UNSEEN


def plain():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 3))
    return net, torch.randn(40, 6)


def in_a_file(net):
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, in_a_file])
def test_a_pass_of_a_copy_is_not_taken_for_one_of_the_network(copied):
    net, x = plain()
    with bnrank.watch(net, every=1) as found, bnrank.watch(plain()[0], every=1) as expected:
        teacher = copied(net)
        assert not torch.equal(teacher(5 * x[:3]), teacher(0 * x[:3]))
        net(x)
        expected.net(x)
        found.step()
        expected.step()
    assert found.history["rows"].values.tolist() == [[40.0] * 4]
    assert found.history.drop_attrs().identical(expected.history.drop_attrs())


def test_a_fixed_batch_is_not_changed_by_operations_in_place():
    x = torch.randn(40, 6)
    before = x.clone()
    with bnrank.watch(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 2)), every=1, x=x) as found:
        found.step()
    assert torch.equal(x, before)
    assert found.history["dead_units"].sel(layer="1").item() == 0


def test_a_copy_in_a_file_needs_no_code_of_the_library():
    net, _ = plain()
    with bnrank.watch(net, every=1):
        file = io.BytesIO()
        torch.save(net, file)
    assert b"bnrank" not in file.getvalue()


@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_code_is_whole_and_has_no_hooks(in_place):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = plain()[0]

        def forward(self, x):
            return self.body(x) + 1

    net, x = Net(), plain()[1]
    pieces = []

    def backend(graph, inputs):
        pieces.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    torch._dynamo.reset()
    options = {"backend": backend, "fullgraph": True}
    if in_place:
        net.compile(**options)
    compiled = net if in_place else torch.compile(net, **options)
    with bnrank.watch(net, every=2) as found, bnrank.watch(net, every=2, x=x) as fixed:
        for _ in range(3):
            compiled(x)
            found.step()
            fixed.step()
    sizes = [len(piece) for piece in pieces]  # three layers, two ReLUs and the sum
    assert sizes == ([6] if in_place else [6, 6])  # the second for a module with hooks
    assert "no forward pass was seen: pass x" in str(found)
    assert np.isfinite(fixed.history["dimension_95"].values).all()


def test_a_step_inside_compiled_code_measures_as_outside():
    net, x = plain()
    torch._dynamo.reset()
    with bnrank.watch(net, every=1, x=x) as found, bnrank.watch(net, every=1, x=x) as expected:

        @torch.compile(backend=lambda graph, inputs: graph.forward)
        def training(x):
            loss = net(x).sum()
            found.step()
            return loss

        training(x)
        expected.step()
    assert found.notes == []
    assert found.history.drop_attrs().identical(expected.history.drop_attrs())


def test_traced_code_has_no_hooks():
    net, x = plain()

    def kinds():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return [node.kind() for node in torch.jit.trace(net, x).inlined_graph.nodes()]

    expected = kinds()
    with bnrank.watch(net, every=1):
        assert kinds() == expected


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_measured_row_by_row(layout):
    net, x = plain()
    pieces = [x[:15], x[15:]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, on nested tensors
        nested = torch.nested.nested_tensor(pieces, layout=layout)
        with bnrank.watch(net, every=1) as found, bnrank.watch(plain()[0], every=1) as expected:
            net(nested)
            expected.net(x)
            found.step()
            expected.step()
    assert found.history.drop_attrs().identical(expected.history.drop_attrs())


def test_an_error_in_a_hook_does_not_stop_the_pass():
    class Odd(tuple):
        @property
        def logits(self):
            raise RuntimeError("no logits")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = plain()[0]

        def forward(self, x):
            return Odd((self.body(x),))

    net = Net()
    with bnrank.watch(net, every=1) as found:
        for _ in range(2):
            net(plain()[1])
            found.step()
    assert found.notes == ["activations not measured at output: RuntimeError: no logits"]
    assert np.isfinite(found.history["units"].values[:, :3]).all()


def test_a_watch_that_is_closed_says_so_once():
    net, x = plain()
    with bnrank.watch(net, every=1) as found:
        net(x)
        found.step()
    with pytest.warns(RuntimeWarning, match="closed: later steps are not measured"):
        assert found.step() is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found.step() is False
    assert "later steps are not measured" in str(found)


def test_a_network_that_is_being_watched_is_measured_and_reduced_like_any_other():
    torch.manual_seed(0)
    net, x = bnrank.MLP([6, 12, 3], seed=0), torch.randn(60, 6)
    expected = bnrank.compress(net, x, tol=0.2)
    with bnrank.watch(net, every=1):
        for some in (net, copy.deepcopy(net)):
            assert functional.is_plain_mlp(some)
            assert identity.describe(some, "net") == identity.describe(bnrank.MLP([6, 12, 3], seed=0), "net")
        found = bnrank.compress(net, x, tol=0.2)
    assert found.reason == expected.reason
    assert found.skipped == expected.skipped == ()


def test_a_writer_that_fails_is_left_out_and_the_others_go_on(tmp_path):
    steps, tried = [], []

    def failing(measured):
        tried.append(measured.step)
        if measured.step > 1:
            raise OSError("no connection")

    net, x = plain()
    writers = [failing, tmp_path / "ranks.csv", lambda measured: steps.append(measured.step)]
    found = bnrank.watch(net, every=1, x=x, writers=writers)
    assert found.step()
    with pytest.warns(RuntimeWarning, match="failing left out since step 2: OSError: no connection"):
        assert found.step()
    assert found.step()
    assert (steps, tried) == (found.history.step.values.tolist(), [1, 2]) == ([1, 2, 3], [1, 2])
    assert bnrank.training.read_csv(tmp_path / "ranks.csv").history.step.values.tolist() == [1, 2, 3]
    assert "failing left out since step 2" in str(found)


def test_an_output_that_is_not_seen_is_remarked_on():
    net, x = plain()
    module = nn.ModuleDict({"body": net})  # as one of Lightning, in which training_step calls the layers
    with bnrank.watch(module, every=1) as found:
        for _ in range(2):
            module.body(x)
            found.step()
    assert found.notes == [f"activations not measured at output: {UNSEEN}"]

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net

        def forward(self, x):
            return self.body(x).square().mean()

    module = Loss()
    with bnrank.watch(module, every=1) as found:
        module(x)
        found.step()
    assert found.notes == ["activations not measured at output: ValueError: got shape (), expected (N, units)"]


def test_sharded_and_wrapped_networks_train_as_alone_and_their_weights_are_gathered(tmp_path):
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        for wrapped in (nn.parallel.DistributedDataParallel, lambda net: distributed.fsdp.fully_shard(net, mesh=mesh)):
            states = []
            for watched in (False, True):
                net, x = plain()
                module = wrapped(net)
                optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
                found = bnrank.watch(module, every=2) if watched else None
                for _ in range(4):
                    optimizer.zero_grad()
                    module(x).square().mean().backward()
                    optimizer.step()
                    if found is not None:
                        found.step()
                states.append([getattr(p, "full_tensor", lambda p=p: p)().detach() for p in module.parameters()])
            assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
            s = torch.linalg.svdvals(states[1][2].double())
            history = found.history
            assert history["stable_rank"].sel(layer="2").values[-1] == pytest.approx(float((s / s[0]).square().sum()))
            assert np.isfinite(history["dimension_95"].values).all()
            assert not found.notes
    finally:
        distributed.destroy_process_group()
