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
from bnrank.training.watching import Writer


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
    assert found.notes == ["activations not measured, output: RuntimeError: no logits"]
    assert np.isfinite(found.history["units"].values[:, :3]).all()


def test_a_watch_that_is_closed_says_so_once():
    net, x = plain()
    with bnrank.watch(net, every=1) as found:
        net(x)
        found.step()
    with pytest.warns(RuntimeWarning, match="closed after the measurement of step 1: later steps are not measured"):
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
    class Failing(Writer):
        def write(self, measured):
            if measured.step == 2:
                raise OSError("no connection")

        def close(self):
            raise OSError("no connection to close")

    class Closing(Failing):
        def write(self, measured):
            pass

    net, x = plain()
    found = bnrank.watch(net, every=1, x=x, writers=[Failing(), tmp_path / "ranks.csv", Closing()])
    assert found.step()
    with pytest.warns(RuntimeWarning, match="Failing left out since step 2: OSError: no connection; measuring"):
        assert found.step()
    assert found.step()
    assert [type(writer).__name__ for writer in found.writers] == ["CSVWriter", "Closing"]
    with pytest.warns(RuntimeWarning, match="Closing left out since step 3: OSError: no connection to close"):
        found.close()
    assert found.history.step.values.tolist() == [1, 2, 3]
    assert bnrank.training.read_csv(tmp_path / "ranks.csv").history.step.values.tolist() == [1, 2, 3]
    assert "Failing left out since step 2" in str(found)


def test_an_output_that_is_not_seen_is_remarked_on():
    net, x = plain()
    module = nn.ModuleDict({"body": net})  # as one of Lightning, in which training_step calls the layers
    with bnrank.watch(module, every=1) as found:
        for _ in range(2):
            module.body(x)
            found.step()
    assert len(found.notes) == 1
    assert found.notes[0].startswith("activations not measured at output: the network itself may not have been called")

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
    assert found.notes == ["activations not measured, output: ValueError: got shape (), expected (N, units)"]
