import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import bnrank
from bnrank.networks import capture, read
from bnrank.networks.functional import Functional
from bnrank.networks.replicas import copied
from oracles import float64, layer_values


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class Shuffled(nn.Module):
    """Registered in another order than run; one layer unused, one used twice, one tied, parameters on itself."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.unused = nn.Linear(4, 4)
        self.twice = nn.Linear(4, 4)
        self.first = nn.Linear(3, 4)
        self.tied = nn.Linear(4, 4)
        self.copy = nn.Linear(4, 4)
        self.copy.weight = self.tied.weight
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        h = torch.relu(self.first(x)) * self.scale
        h = self.twice(torch.relu(self.twice(h)))
        return self.last(self.copy(self.tied(h)))


class Loud(nn.Module):
    """Everything that could be left changed: dropout, running statistics, a counter, in-place activations."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.drop = nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.b, self.lstm = nn.Linear(6, 2), nn.LSTM(6, 6, batch_first=True)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        self.steps += 1
        torch.rand(3)
        h = torch.relu_(self.norm(self.a(x)))
        h = self.lstm(self.drop(h)[:, None])[0][:, 0]
        return self.b(h)


def test_an_mlp_is_read_by_its_layer_names():
    reading = read(bnrank.MLP([3, 5, 4, 2]))
    assert [(layer.index, layer.name, layer.kind) for layer in reading.layers] == [
        (1, "layers.0", "linear"),
        (2, "layers.1", "linear"),
        (3, "layers.2", "linear"),
    ]
    assert reading.skipped == ()


def test_layers_come_in_order_of_execution_and_the_others_with_a_reason():
    reading = read(Shuffled(), torch.randn(5, 3, generator=generator()))
    assert [layer.name for layer in reading.layers] == ["first", "last"]
    assert [layer.input_shape for layer in reading.layers] == [(3,), (4,)]
    reasons = {s.name: s.reason for s in reading.skipped}
    assert set(reasons) == {"", "unused", "twice", "tied", "copy"}
    assert "never called" in reasons["unused"]
    assert "called 2 times" in reasons["twice"]
    assert "'copy'" in reasons["tied"]
    assert reasons["copy"] == "tied: the same tensor as tied.weight, counted once"
    assert "a vector" in reasons[""]


def test_registration_order_without_an_example():
    assert [layer.name for layer in read(Shuffled()).layers] == ["last", "unused", "twice", "first"]


def test_every_module_with_parameters_is_read_or_skipped():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.PReLU(),
        nn.ConvTranspose2d(4, 4, 3),
        nn.GroupNorm(2, 4),
        nn.Flatten(),
        nn.Linear(4 * 64, 6),
        nn.LayerNorm(6),
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
        nn.Dropout(),
        nn.Linear(6, 1),
    )
    for x in (None, torch.randn(4, 1, 8, 8, generator=generator())):
        reading = read(net, x)
        assert [layer.name for layer in reading.layers] == ["0", "3", "6", "8", "10"]
        assert [layer.kind for layer in reading.layers][1] == "transposed conv2d"
        assert {s.name: s.type for s in reading.skipped} == {
            "1": "BatchNorm2d",
            "2": "PReLU",
            "4": "GroupNorm",
            "7": "LayerNorm",
        }
        assert all(s.reason for s in reading.skipped)
        owners = {
            name.rpartition(".")[0].removesuffix(".parametrizations.weight") for name, _ in net.named_parameters()
        }
        assert owners == {layer.name for layer in reading.layers} | {s.name for s in reading.skipped}


class Product(nn.Module):
    """x W^T, of a class that bnrank does not know."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 5, generator=generator(1)))

    def forward(self, x):
        return x @ self.matrix.T


def test_pruned_layers_are_measured_on_samples_with_the_masked_weight():
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), Product(), nn.ReLU())
    net.append(nn.Linear(4, 3))
    prune.ln_structured(net[0], "weight", 2, n=2, dim=0)
    prune.random_unstructured(net[3], "weight", 0.5)
    prune.random_unstructured(net[3], "bias", 0.4)
    prune.random_unstructured(net[5], "matrix", 0.5)
    prune.random_unstructured(net[7], "bias", 1)
    state = {key: value.clone() for key, value in net.state_dict().items()}
    x = torch.randn(6, 2, 4, 4, generator=generator())
    ds = bnrank.profile(net, x)
    assert ds.layer_name.values.tolist() == ["0", "3", "5.matrix", "7"]
    assert "skipped" not in ds.dims
    plain = copied(net)
    for index, name in ((0, "weight"), (3, "weight"), (3, "bias"), (5, "matrix"), (7, "bias")):
        masked = state[f"{index}.{name}_orig"].numpy() * state[f"{index}.{name}_mask"].numpy()
        prune.remove(plain[index], name)
        np.testing.assert_array_equal(getattr(plain[index], name).detach(), masked)
        if name in ("weight", "matrix") and index:
            row = ds.weight_singular_values.values[[0, 3, 5, 7].index(index)]
            np.testing.assert_allclose(row[np.isfinite(row)], np.linalg.svd(np.float64(masked))[1], atol=1e-6)
    expected = bnrank.profile(plain, x)
    for name in ("weight_singular_values", "activation_singular_values", "jacobian_singular_values", "parameter_norm"):
        np.testing.assert_allclose(ds[name], expected[name], rtol=1e-6, atol=1e-7, err_msg=name)
    assert ds.weight_rank.values[0] <= 2 * 4  # of four channels of 2 x 2 positions two are zero
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
    alone = bnrank.profile(net[3], x.flatten(1)[:, :16])
    np.testing.assert_allclose(alone.weight_singular_values.values[0, :5], expected.weight_singular_values[1, :5])


def test_gates_of_parametrized_recurrent_layers_and_of_subclasses():
    class Encoder(nn.LSTM):
        pass

    normed = nn.utils.parametrizations.weight_norm(nn.LSTM(3, 4, batch_first=True), "weight_hh_l0")
    x = torch.randn(5, 6, 3, generator=generator())
    for net in (normed, Encoder(3, 4, batch_first=True)):
        ds = bnrank.profile(net, x)
        assert ds.layer_name.values.tolist() == bnrank.profile(net).layer_name.values.tolist()
        row = ds.weight_singular_values.values[ds.layer_name.values.tolist().index("l0.hh.cell")]
        gate = net.weight_hh_l0.detach().double().numpy()[8:12]
        np.testing.assert_allclose(row[:4], np.linalg.svd(gate)[1], rtol=1e-5)


def test_one_module_under_two_names_is_shared():
    layer = nn.Linear(3, 3)
    reading = read(nn.Sequential(layer, nn.ReLU(), layer))
    assert reading.layers == ()
    assert "shared" in reading.skipped[0].reason


def test_attention_and_embedding_are_read_with_their_neighbors():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 8)
            self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.block(self.embed(x)).mean(1))

    net, x = Tokens(), torch.randint(10, (6, 4), generator=generator())
    reading = read(net, x)
    attention = [f"block.self_attn.{name}" for name in ("q", "k", "v", "out_proj")]
    assert [layer.name for layer in reading.layers] == ["embed", *attention, "block.linear1", "block.linear2", "head"]
    assert [layer.name for layer in read(net).layers] == [layer.name for layer in reading.layers]
    assert {s.name for s in reading.skipped} == {"block.norm1", "block.norm2"}
    (part,) = capture(net, x, reading)
    assert torch.allclose(part.output, float64(net)(x))


class Projected(nn.Embedding):
    """An embedding with a second matrix."""

    def __init__(self):
        super().__init__(11, 4)
        self.projection = nn.Parameter(torch.randn(4, 3, generator=generator()))

    def forward(self, x):
        return super().forward(x) @ self.projection


def test_an_embedding_with_a_second_matrix_is_not_observed():
    net, x = nn.Sequential(Projected(), nn.Linear(3, 2)), torch.arange(30).reshape(6, 5) % 11
    reading = read(net, x)
    assert [layer.name for layer in reading.layers] == ["1"]
    assert [layer.name for layer in reading.unobserved] == ["0", "0.projection"]


class Reshaped(nn.Module):
    """The shapes of what enters and leaves a layer change in place, after it ran."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        h = self.a(x).relu()
        y = self.b(h)
        h.unsqueeze_(1)
        y.unsqueeze_(1)
        return y[:, 0] + h.sum()


def test_shapes_are_those_at_which_a_layer_ran():
    x = torch.randn(6, 4, generator=generator())
    layers = read(Reshaped(), x).layers
    assert [(layer.name, layer.input_shape, layer.output_shape) for layer in layers] == [
        ("a", (4,), (4,)),
        ("b", (4,), (2,)),
    ]


class Halved(nn.Linear):
    def forward(self, x):
        return super().forward(x) / 2


class Same(nn.Linear):
    def forward(self, x):
        return super().forward(x)


def test_subclasses_are_read_only_if_they_compute_what_the_base_does():
    net = nn.Sequential(Halved(3, 3), Same(3, 3), nn.Linear(3, 3))
    reading = read(net, torch.randn(4, 3, generator=generator()))
    assert [layer.name for layer in reading.layers] == ["1", "2"]
    assert "overrides forward" in reading.skipped[0].reason
    assert [layer.name for layer in read(net).layers] == ["2"]


@pytest.mark.parametrize("steps", [2, 5])
def test_a_first_dimension_that_is_not_the_samples_is_noticed(steps):
    class Transposed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.b(self.a(x.transpose(0, 1)).transpose(0, 1))

    net, x = Transposed(), torch.randn(4, steps, 3, generator=generator())
    reading = read(net, x)
    assert [(layer.name, layer.samples_dim) for layer in reading.layers] == [("a", 1), ("b", 0)]
    (part,) = capture(net, x, reading)
    assert torch.allclose(part.preactivations[0], float64(net).a(x.double()))

    class Joined(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(0, 1)).view(len(x), -1, self.out_features)

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.b(self.a(x.flatten(0, 1)).view(x.shape))

    reading = read(Mixed(), x)
    assert [layer.name for layer in reading.layers] == ["b"]
    assert [layer.name for layer in reading.unobserved] == ["a"]
    assert "no dimension of it is that of the samples" in reading.skipped[0].reason
    assert [layer.name for layer in read(nn.Sequential(Joined(3, 2)), x).layers] == ["0"]


@pytest.mark.parametrize("chunk", [1, 3, 10, 100])
def test_capture_equals_one_pass_of_a_float64_copy(chunk):
    x = torch.randn(10, 3, generator=generator())
    net = nn.Sequential(nn.Linear(3, 6), nn.ReLU(inplace=True), nn.BatchNorm1d(6), nn.Linear(6, 4), nn.Tanh())
    parts = list(capture(net, x, chunk_size=chunk))
    copied = float64(net)
    expected = layer_values(copied, [copied[0], copied[3]], x)
    for i in range(2):
        assert torch.allclose(torch.cat([p.preactivations[i] for p in parts]), expected[i])
    assert torch.allclose(torch.cat([p.activations[1] for p in parts]), copied(x.double()))
    assert torch.equal(torch.cat([p.inputs[0] for p in parts]), x.double())
    assert [p.rows.start for p in parts] == list(range(0, 10, chunk))


def snapshot(net):
    state = {k: v.clone() for k, v in net.state_dict().items()}
    grads = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in net.modules()]
    return state, [m.training for m in net.modules()], hooks, grads, [p.requires_grad for p in net.parameters()]


def same(a, b):
    return a[1:3] == b[1:3] and a[4] == b[4] and all(torch.equal(a[0][k], b[0][k]) for k in a[0]) and a[3] == b[3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fail", [False, True])
def test_nothing_is_left_changed(fail, dtype):
    net = Loud().train().to(dtype)
    net.norm.eval()
    x = torch.randn(5, 3, generator=generator())
    before, random, ids = snapshot(net), torch.get_rng_state(), [id(p) for p in net.parameters()]
    copied = copy.deepcopy(net).eval()
    if fail:
        with pytest.raises(ValueError, match="failed on x"):
            read(net, torch.randn(5, 4, generator=generator()))
        with pytest.raises(ValueError, match="failed on x"):
            list(capture(net, torch.randn(5, 4, generator=generator()), read(net, x)))
    else:
        for part in capture(net, x, chunk_size=2):
            assert same(before, snapshot(net))  # between chunks too
            assert part.output.dtype == torch.float64
            assert not part.output.requires_grad
    assert same(before, snapshot(net))
    assert torch.equal(random, torch.get_rng_state())
    assert ids == [id(p) for p in net.parameters()]
    assert torch.equal(net.eval()(x.to(dtype)), copied(x.to(dtype)))  # the LSTM's flat weights are its own again


def test_a_forward_that_cannot_run_in_float64_says_so_and_runs_in_float32():
    class Stubborn(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.fixed = nn.Linear(3, 2), torch.ones(2, 2)

        def forward(self, x):
            return self.a(x) @ self.fixed.float()

    net, x = Stubborn(), torch.randn(4, 3, generator=generator())
    reading = read(net, x)
    assert [layer.name for layer in reading.layers] == ["a"]
    with pytest.raises(ValueError, match=r"dtype=torch.float32"):
        list(capture(net, x, reading))
    (part,) = capture(net, x, reading, dtype=torch.float32)
    assert part.output.dtype == torch.float32


class Chosen(nn.Module):
    def __init__(self, *order):
        super().__init__()
        self.a, self.b, self.order = nn.Linear(3, 3), nn.Linear(3, 3), order

    def forward(self, x):
        for name in self.order:
            x = getattr(self, name)(x)
        return x


def test_errors_name_the_argument():
    twice, unused = Chosen("a", "b", "a"), Chosen("a")
    x = torch.randn(4, 3, generator=generator())
    with pytest.raises(TypeError, match=r"net: got 'net' \(str\)"):
        read("net")
    with pytest.raises(ValueError, match=r"x: got shape .*expected .N, 3."):
        read(bnrank.MLP([3, 2]), torch.randn(4, 5))
    with pytest.raises(ValueError, match="NaN"):
        read(bnrank.MLP([3, 2]), torch.full((4, 3), torch.nan))
    with pytest.raises(ValueError, match=r"found no linear or convolutional layer.*BatchNorm1d"):
        capture(nn.Sequential(nn.BatchNorm1d(3)), x)
    with pytest.raises(ValueError, match="chunk_size: got 0"):
        capture(bnrank.MLP([3, 2]), x, chunk_size=0)
    with pytest.raises(ValueError, match=r"parameters without a shape yet \(weight, bias\)"):
        read(nn.LazyLinear(3))
    with pytest.raises(ValueError, match="runs more than once"):
        list(capture(twice, x, read(twice)))
    with pytest.raises(ValueError, match="'b' did not run"):
        list(capture(unused, x, read(unused)))
    with pytest.raises(ValueError, match="reading: got one of another module"):
        capture(bnrank.MLP([3, 2]), x, read(bnrank.MLP([3, 2])))


def test_numpy_samples_and_compiled_modules_are_read():
    net = nn.Sequential(nn.Linear(3, 2))
    (part,) = capture(torch.compile(net), np.ones((2, 3), dtype=np.float32))
    assert torch.allclose(part.output, float64(net)(torch.ones(2, 3).double()))


def test_functional_lets_gradients_through():
    net, x = bnrank.MLP([3, 4, 1]), torch.randn(2, 3, generator=generator()).double().requires_grad_(True)
    Functional(net)(x).sum().backward()
    assert x.grad is not None
    assert all(p.grad is None for p in net.parameters())


class Updater(nn.Module):
    """Keeps a module that runs elsewhere, as the one that redraws projections of a Performer."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept


class Named(nn.Module):
    """A network whose layers have two names each and run once: by the first, or by the second."""

    def __init__(self, second, runs=1):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2))
        self.whole, self.last = Updater(self.net), Updater(self.net[4])
        self.second, self.runs = second, runs

    def forward(self, x):
        for _ in range(self.runs):
            z = self.net[3](self.net[2](self.net[1](self.whole.kept[0](x))))
            out = self.last.kept(z) if self.second else self.net[4](z)
        return out


@pytest.mark.parametrize("second", [False, True])
def test_a_layer_with_several_names_that_runs_once_is_measured_by_the_first(second):
    net, x = Named(second), torch.randn(100, 6, generator=generator())
    reading = read(net, x)
    assert [layer.name for layer in reading.layers] == ["net.0", "net.2", "net.4"]
    assert (reading.unobserved, reading.skipped) == ((), ())
    found, alone = bnrank.profile(net, x), bnrank.profile(net.net, x)  # the same layers, with one name each
    assert found.layer_name.values.tolist() == ["net.0", "net.2", "net.4"]
    assert set(found.variables) == set(alone.variables)
    numbers = [name for name, variable in alone.variables.items() if variable.dtype.kind in "fiub"]
    assert {"activation_singular_values", "dimension_95", "jacobian_singular_values", "ntk_trace"} <= set(numbers)
    for name in numbers:
        assert found[name].variable.equals(alone[name].variable), name
    assert "No difference in 6 compared tensors" in str(bnrank.compare(net, net.net, x))


def test_a_layer_with_several_names_that_runs_twice_or_is_read_without_an_example_is_unobserved():
    reason = "shared: the same module is used in more than one place, 'net.0', 'whole.kept.0'"
    for reading in (read(Named(True, runs=2), torch.ones(4, 6)), read(Named(True))):
        assert reading.layers == ()
        assert reading.unobserved[0].reason == reason


@pytest.mark.parametrize("make", [lambda: nn.MultiheadAttention(6, 1, batch_first=True), lambda: nn.LSTM(6, 6)])
def test_all_matrices_of_a_module_with_two_names_are_shared(make):
    net = nn.Module()
    net.a = net.b = make()
    reading = read(net)
    assert reading.layers == ()
    text = "shared: the same module is used in more than one place, 'a"
    assert all(layer.reason.startswith(text) for layer in reading.unobserved)
    assert len(reading.unobserved) >= 4


def test_two_names_of_a_weight_in_one_module_are_one_place():
    layer = nn.Linear(6, 6)
    layer.alias = layer.weight
    (unobserved,) = read(nn.Sequential(layer)).unobserved
    assert unobserved.reason == "has parameters besides weight and bias: alias"


class Positions(nn.Module):
    """A module with a matrix of its own that runs layers, as a vision transformer is."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.positions, self.a, self.o = nn.Parameter(torch.ones(4, 6)), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return torch.relu(self.o(torch.relu(self.a(x + self.positions))))


def test_layers_inside_a_module_with_a_matrix_of_its_own_are_followed():
    net, x = Positions(), torch.randn(60, 4, 6, generator=generator())
    for whole in (net, nn.Sequential(net)):
        assert [layer.apart for layer in read(whole, x).layers] == [False, False]
    found = bnrank.spectra.activation_singular_values(net, x)["o"]
    expected = torch.linalg.svdvals(net(x).detach().double().flatten(1)) / 60**0.5
    assert torch.allclose(found, expected, atol=1e-6)


def test_a_watch_records_a_layer_with_several_names_once():
    net, x, found = Named(True), torch.randn(50, 6, generator=generator()), []
    for watched in (net, net.net):
        with bnrank.watch(watched, every=1) as watch:
            watched(x)
            watch.step()
        found.append(watch.history)
    assert found[0].layer.values.tolist() == ["net.0", "net.2", "net.4", "output"]
    for name in ("stable_rank", "dimension_95"):
        assert np.array_equal(found[0][name].values, found[1][name].values, equal_nan=True)


class Complex(nn.Module):
    """A layer of complex numbers, of which a hook passes on the sizes."""

    def __init__(self):
        super().__init__()
        self.a, self.c, self.d = nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.complex64), nn.Linear(4, 2)
        self.c.register_forward_hook(lambda module, given, output: output.abs())

    def forward(self, x):
        y = self.a(x)
        return self.d(self.c(torch.complex(y, 0 * y)))


def test_a_layer_that_complex_numbers_enter_is_unobserved():
    reading = read(Complex(), torch.randn(5, 4))
    assert "c" not in [layer.name for layer in reading.layers]
    assert {layer.name: layer.reason for layer in reading.unobserved}["c"] == "its values are complex numbers"
