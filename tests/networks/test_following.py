"""Which layer's output the next one reads, in modules with branches, several outputs and flattened images."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import bnrank
from bnrank.networks import capture, read
from helpers import normal


class Heads(nn.Module):
    """Two outputs, in the order that a function of them gives."""

    def __init__(self, outputs):
        super().__init__()
        self.body, self.head, self.aux, self.outputs = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 5), outputs

    def forward(self, x):
        return self.outputs(self, torch.relu(self.body(x)))


def numpy_linear(layer, x):
    return x @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()


OWN = {
    "features first": lambda net, h: (h, net.aux(h)),
    "head first": lambda net, h: (net.head(h), net.aux(h)),
    "a dictionary": lambda net, h: {"aux": net.aux(h), "logits": h.tanh()},
    "a function of the head": lambda net, h: (torch.softmax(net.head(h), 1), net.aux(h)),
    "a function made later": lambda net, h: (lambda z, a: (z.tanh(), a))(net.head(h), net.aux(h)),
}


@pytest.mark.parametrize("name", OWN)
def test_the_last_layer_has_its_own_output_where_the_main_one_is_another(name):
    torch.manual_seed(0)
    net, x = Heads(OWN[name]), normal(20, 6)
    reading = read(net, x)
    assert reading.layers[-1].name == "aux"
    assert reading.layers[-1].apart
    (found,) = capture(net, x, reading)
    hidden = np.maximum(numpy_linear(net.body, x.numpy()), 0)
    assert np.allclose(found.activations[-1], numpy_linear(net.aux, hidden))
    assert np.allclose(found.activations[0], hidden)


FOLLOWING = {
    "itself": (lambda net, h: net.aux(h), lambda z, h: z),
    "a function": (lambda net, h: net.aux(h).tanh(), lambda z, h: np.tanh(z)),
    "in place": (lambda net, h: net.aux(h).relu_(), lambda z, h: np.maximum(z, 0)),
    "a sum": (lambda net, h: net.aux(h) + h[:, :5], lambda z, h: z + h[:, :5]),
    "first of two": (lambda net, h: (net.aux(h).exp(), h), lambda z, h: np.exp(z)),
    "without gradients": (lambda net, h: torch.no_grad()(lambda: net.aux(h).tanh())(), lambda z, h: np.tanh(z)),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_the_last_layer_has_the_output_that_follows_from_it(name):
    torch.manual_seed(0)
    outputs, expected = FOLLOWING[name]
    net, x = Heads(outputs), normal(20, 6)
    (found,) = capture(net, x)
    hidden = np.maximum(numpy_linear(net.body, x.numpy()), 0)
    assert np.allclose(found.activations[-1], expected(numpy_linear(net.aux, hidden), hidden))


@pytest.mark.parametrize("name", ["no gradients", "failure"])
def test_where_gradients_tell_nothing_layers_are_apart(name):
    def outputs(net, h):
        if name == "failure":
            net.head(h).numpy()  # refused where gradients are recorded
            return h, net.aux(h)
        with torch.no_grad():
            return h, net.aux(h)

    layers = read(Heads(outputs), normal(20, 6)).layers
    assert layers[-1].name == "aux"
    assert layers[-1].apart


class Branches(nn.Module):
    """A branch reads a maximum that is taken after the other branch ran."""

    def __init__(self):
        super().__init__()
        self.stem, self.left, self.right = (nn.Conv2d(2, 4, 3, padding=1), *(nn.Conv2d(4, 4, 1) for _ in "ab"))

    def forward(self, x):
        z = self.stem(x).relu()
        left = self.left(z)
        return torch.cat([left, self.right(nn.functional.max_pool2d(z, 3, 1, 1))], 1).flatten(1)


def test_a_branch_that_reads_a_function_of_an_earlier_value_is_apart():
    layers = read(Branches(), normal(5, 2, 6, 6)).layers
    assert [(layer.name, layer.apart) for layer in layers] == [("stem", False), ("left", True), ("right", False)]
    assert [layer.unflattened for layer in layers] == [(), (), (8, 6, 6)]


class Flattened(nn.Module):
    """Convolutions, something, and a linear layer."""

    def __init__(self, between, size):
        super().__init__()
        self.conv, self.between, self.fc = nn.Conv2d(3, 8, 3, padding=1), between, nn.Linear(size, 4)

    def forward(self, x):
        return self.fc(self.between(torch.relu(self.conv(x))))


FLATTENED = {
    "module": (nn.Flatten(), (8, 6, 6)),
    "function": (lambda z: torch.flatten(z, 1), (8, 6, 6)),
    "method": (lambda z: z.flatten(1), (8, 6, 6)),
    "view": (lambda z: z.view(len(z), -1), (8, 6, 6)),
    "view of one size": (lambda z: z.view(-1, 288), (8, 6, 6)),
    "reshape": (lambda z: z.reshape(z.size(0), -1), (8, 6, 6)),
    "pooling": (lambda z: nn.functional.max_pool2d(z, 2).flatten(1), (8, 3, 3)),
    "global pooling": (lambda z: z.mean((2, 3)), ()),
    "dropout": (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(288), nn.Dropout()), (8, 6, 6)),
    "two steps": (lambda z: z.flatten(2).flatten(1), (8, 36)),
    "channels last": (lambda z: z.permute(0, 2, 3, 1).flatten(1), (6, 6, 8)),
    "another tensor": (lambda z: z.flatten(1)[:, :200], ()),
}


@pytest.mark.parametrize("name", FLATTENED)
def test_the_shape_before_flattening_is_found(name):
    between, shape = FLATTENED[name]
    size = 200 if name == "another tensor" else int(np.prod(shape)) if shape else 8
    layers = read(Flattened(between, size), normal(5, 3, 6, 6)).layers
    assert [layer.unflattened for layer in layers] == [shape, ()]
    assert not layers[0].apart


def answers(net, x):
    return [(layer.name, layer.apart, layer.unflattened) for layer in read(net, x).layers]


class Between(nn.Module):
    """A layer, what the next one reads of it, and the next one."""

    def __init__(self, between, size, width=5):
        super().__init__()
        self.a, self.b, self.between = nn.Linear(6, width), nn.Linear(size, 2), between

    def forward(self, x):
        return self.b(self.between(x, self.a(x)))


class Argmax(nn.Module):
    def forward(self, h):
        return nn.functional.one_hot(h.argmax(1), 5).to(h)


@torch.no_grad()
def without_gradients(h):
    return h * 1.0


CUT = {
    "detach": lambda h: h.detach(),
    "detach in place": lambda h: (h * 1.0).detach_(),
    "data": lambda h: h.data,
    "without gradients": without_gradients,
}
LOST = {
    "numpy": lambda h: torch.from_numpy(h.detach().numpy().copy()),
    "numbers": lambda h: torch.tensor(h.tolist(), dtype=h.dtype),
    "largest": Argmax(),
    "sign": lambda h: (h > 0).to(h),
}
READERS = {
    "joined": (lambda x, h: torch.cat([x, h.relu()], 1), 11),
    "added": (lambda x, h: torch.relu(h) + 0 * x[:, :5], 5),
    "negative": (lambda x, h: torch.relu(-h.abs() + 0 * x[:, :5]) + h.relu(), 5),
}


@pytest.mark.parametrize("cut", CUT)
@pytest.mark.parametrize("name", READERS)
def test_a_layer_is_read_by_way_of_what_has_no_gradients(name, cut):
    torch.manual_seed(0)
    between, size = READERS[name]
    net, x = Between(lambda x, h: between(x, CUT[cut](h)), size), normal(20, 6)
    assert not read(net, x).layers[0].apart
    (found,) = capture(net, x)
    assert np.allclose(found.activations[0], found.inputs[1])


@pytest.mark.parametrize("lost", LOST)
def test_a_layer_whose_reader_cannot_be_told_has_its_own_output(lost):
    torch.manual_seed(0)
    net, x = Between(lambda x, h: torch.cat([x, LOST[lost](h)], 1), 11), normal(20, 6)
    assert read(net, x).layers[0].apart
    (found,) = capture(net, x)
    assert torch.equal(found.activations[0], found.preactivations[0])


def test_detached_copies_have_the_units_and_dimensions_of_the_others():
    torch.manual_seed(0)
    net, x = Between(lambda x, h: torch.cat([x, h.relu()], 1), 14, 8), normal(60, 6)
    expected = bnrank.profile(net, x)
    net.between = lambda x, h: torch.cat([x, h.relu().detach()], 1)
    found = bnrank.profile(net, x)
    assert found.units.values.tolist() == expected.units.values.tolist() == [14, 2]
    assert np.array_equal(found.dimension_95.values, expected.dimension_95.values)


class Twice(Branches):
    """The branches, with what the second reads, or the output, detached."""

    def __init__(self, cut):
        super().__init__()
        self.cut = cut

    def forward(self, x):
        z = self.stem(x).relu()
        left = self.left(z)
        if self.cut == "everywhere":
            return torch.cat([left.detach(), self.right(nn.functional.max_pool2d(z.detach(), 3, 1, 1))], 1).flatten(1)
        right = self.right(nn.functional.max_pool2d(z.detach() + 0 * z if self.cut == "first" else z, 3, 1, 1))
        out = torch.cat([left, right], 1).flatten(1)
        return out.detach() if self.cut == "output" else out


@pytest.mark.parametrize("cut", ["first", "output", "everywhere"])
def test_branches_are_told_apart_with_detached_values(cut):
    x = normal(5, 2, 6, 6)
    assert answers(Twice(cut), x) == answers(Branches(), x)


@pytest.mark.parametrize("name", OWN)
def test_heads_have_their_own_outputs_where_the_main_one_is_detached(name):
    torch.manual_seed(0)
    net = Heads(lambda net, h: OWN[name](net, h))
    x = normal(20, 6)
    expected = answers(net, x)
    net.body.register_forward_hook(lambda part, args, output: output + 0 * output.detach())
    assert answers(net, x) == expected
    assert expected[-1][1]


class Noisy(nn.Module):
    """Numbers that no generator of torch makes, and a count of the runs."""

    def __init__(self, noise):
        super().__init__()
        self.noise, self.a, self.b = noise, nn.Linear(6, 5), nn.Linear(5, 2)
        self.register_buffer("count", torch.zeros(()))
        self.runs = []

    def forward(self, x):
        self.runs.append(self.training)
        self.count += 1
        h = self.a(x).detach() + 0 * x[:, :5]
        return self.b(h + np.random.default_rng().normal() if self.noise else h)


@pytest.mark.parametrize("noise", [False, True])
def test_a_trial_leaves_no_trace(noise):
    torch.manual_seed(0)
    net, x = Noisy(noise), normal(20, 6)
    net.a.eval()
    net.b.weight.grad = torch.ones(2, 5)
    state, hooks = torch.get_rng_state(), [(len(p._forward_hooks), len(p._forward_pre_hooks)) for p in net.modules()]
    assert not read(net, x).layers[0].apart
    assert torch.equal(torch.get_rng_state(), state)
    assert [(len(p._forward_hooks), len(p._forward_pre_hooks)) for p in net.modules()] == hooks
    assert (net.training, net.a.training, net.b.training) == (True, False, True)
    assert net.count == 0
    assert torch.equal(net.b.weight.grad, torch.ones(2, 5))
    assert net.a.weight.grad is None
    assert not net.a.weight.is_inference()


def test_runs_with_changed_outputs_that_fail_leave_it_to_the_memory_of_tensors():
    def between(x, h):
        if h.abs().max() > 100:
            raise RuntimeError("too large")
        return torch.max(h.detach(), 0 * x[:, :5] - 10)

    torch.manual_seed(0)
    net = Between(between, 5)
    with torch.no_grad():
        net.a.bias[0] = 60.0
    assert not read(net, normal(20, 6)).layers[0].apart


def test_a_network_runs_twice():
    class Counted(nn.Sequential):
        runs: ClassVar[list[int]] = []

        def forward(self, x):
            self.runs.append(len(x))
            return super().forward(x)

    net = Counted(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 5), nn.Linear(5, 2))
    read(net, normal(4, 3, 6, 6))
    assert Counted.runs == [2, 3]


class Tied(nn.Module):
    """A head with the weight of an embedding."""

    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)).relu())


class Repeated(nn.Module):
    """A layer of another width that is called twice, between two others, or beside them."""

    def __init__(self, between):
        super().__init__()
        self.first, self.wide, self.last = nn.Linear(6, 4), nn.Linear(4, 9), nn.Linear(9, 2)
        self.between = between

    def forward(self, x):
        hidden = self.first(x).relu()
        wide = self.wide(hidden) + self.wide(hidden.tanh())
        return self.last(wide if self.between else torch.cat([hidden, hidden, hidden[:, :1]], 1))


def test_what_an_unobserved_layer_makes_of_an_output_is_not_its_own():
    net, tokens = Tied(), torch.arange(60).reshape(20, 3) % 50
    ds = bnrank.profile(net, tokens, what=("weights", "activations"))
    assert ds.layer_name.values.tolist() == ["body", "embed"]
    assert ds.units.values[0] == 16
    (found,) = capture(net, tokens)
    assert torch.equal(found.activations[0], found.preactivations[0])
    assert [layer.apart for layer in read(Repeated(True), normal(20, 6)).layers] == [True, False]
    assert [layer.apart for layer in read(Repeated(False), normal(20, 6)).layers] == [False, False]
