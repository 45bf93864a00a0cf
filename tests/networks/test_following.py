"""Which layer's output the next one reads, in modules with branches, several outputs and flattened images."""

import numpy as np
import pytest
import torch
from torch import nn

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
    "by way of numpy": (lambda net, h: torch.from_numpy(np.tanh(net.aux(h).numpy())), lambda z, h: np.tanh(z)),
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
def test_where_gradients_tell_nothing_the_memory_of_tensors_does(name):
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
