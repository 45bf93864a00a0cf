import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import bnrank
from bnrank.networks.graph import trace
from helpers import normal
from networks.graph_modules import Of, seeded


def of(function, **attributes):
    return seeded(lambda: Of(function, **attributes))


def mutating(m, x):
    x += 1
    return m.a(x)


def branching(m, x):
    if x.sum() > 0:
        return m.a(x)
    return -m.a(x)


def writing(m, x):
    m.out[:, :2] = m.a(x)
    return m.out


def stepping(m, x):
    m.a.weight.data.mul_(0.9)
    return m.a(x)


class DropPath(nn.Module):
    def forward(self, x):
        if not self.training:
            return x
        return x * x.new_empty(len(x), 1).bernoulli_(0.5)


def linear():
    return {"a": nn.Linear(3, 2)}


REFUSED = {
    "'lstm' (LSTM) is recurrent": lambda: of(lambda m, x: m.lstm(x)[0], lstm=nn.LSTM(3, 2)),
    "depends on the data at": lambda: of(branching, **linear()),
    "if x.sum() > 0": lambda: of(branching, **linear()),
    "a number depends on the data": lambda: of(lambda m, x: m.a(x) * x.max().item(), **linear()),
    "depends on the data": lambda: of(lambda m, x: m.a(x) * float(x.max()), **linear()),
    "number is taken out of a.bias": lambda: of(lambda m, x: m.a(x) * m.a.bias.sum().item(), **linear()),
    "changes its input in place, by add": lambda: of(mutating, **linear()),
    "changes its input in place, by 0": lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)),
    "a buffer, or a tensor from elsewhere": lambda: of(writing, **linear(), out=torch.zeros(2, 3, dtype=torch.float64)),
    "changes the parameter a.weight": lambda: of(stepping, **linear()),
    "missing 1 required positional argument": lambda: nn.Bilinear(3, 3, 2),
    "returns tuple": lambda: of(lambda m, x: (m.a(x), x), **linear()),
    "expected one tensor (N, ...) that depends on its input": lambda: of(lambda m, x: torch.ones(len(x), 2)),
    "does something else while training": lambda: nn.Sequential(nn.Linear(3, 2), DropPath()),
    "is scripted": lambda: torch.jit.script(nn.Linear(3, 2)),
    "a parameter that is not registered": lambda: of(lambda m, x: m.a(x) + nn.Linear(3, 2)(x), **linear()),
    "without a shape": lambda: nn.LazyLinear(2),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("message", REFUSED)
def test_refused_with_a_reason(message):
    module = REFUSED[message]()
    with pytest.raises(ValueError, match="net: ") as caught:
        trace(module, normal(4, 3))
    assert message in str(caught.value)


def test_the_type_and_the_memory_of_the_input_may_be_read():
    def forward(m, x):
        assert isinstance(x, torch.Tensor)
        assert x.data_ptr() != 0
        return m.a(x)

    assert [node.op for node in trace(of(forward, **linear()), normal(4, 3))] == ["input", "linear"]


def permuted(m, x):
    return m.b(m.a(x)[:, torch.randperm(4)])


def shuffled(m, x):
    return m.b(m.a(x)[:, torch.from_numpy(np.random.permutation(4))])  # noqa: NPY002


def by_chance(m, x):
    h = m.a(x)
    return m.b(torch.relu(h) + h if random.random() < 0.7 else torch.relu(h))


def dropped_by_chance(m, x):
    h = m.a(x)
    return m.b(h + torch.relu(h) if not m.training or torch.rand(()) < 0.8 else h)


def after_what_is_outside(m, x):
    return m.b(torch.flip(torch.sigmoid(m.a(x)), [1])[:, torch.randperm(4)])


@pytest.mark.parametrize("function", [permuted, dropped_by_chance, after_what_is_outside])
def test_graphs_that_depend_on_random_numbers_of_torch_are_refused(function):
    module, before = of(function, a=nn.Linear(3, 4), b=nn.Linear(4, 2)), torch.get_rng_state()
    with pytest.raises(ValueError, match="draws random numbers that decide"):
        trace(module, normal(2, 3))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("state", range(5))
@pytest.mark.parametrize("function", [shuffled, by_chance])
def test_graphs_that_depend_on_other_random_numbers_are_refused(function, state):
    random.seed(state)
    np.random.seed(state)  # noqa: NPY002
    with pytest.raises(ValueError, match=r"draws random numbers that decide|something else while|not give its output"):
        trace(of(function, a=nn.Linear(3, 4), b=nn.Linear(4, 2)), normal(2, 3))


@pytest.mark.parametrize("noise", [lambda h: h + torch.randn(4), lambda h: functional.dropout(h, 0.3)])
def test_noise_is_outside_and_not_refused(noise):
    graph = trace(of(lambda m, x: m.b(noise(m.a(x))), a=nn.Linear(3, 4), b=nn.Linear(4, 2)), normal(2, 3))
    assert [node.op for node in graph] == ["input", "linear", "outside", "linear"]


def test_the_line_is_that_of_the_user():
    with pytest.raises(ValueError, match=r"test_graph_refused\.py, line \d+ \(if x\.sum\(\) > 0:\)"):
        trace(of(branching, **linear()), normal(4, 3))


@pytest.mark.parametrize("given", [None, "text", torch.zeros(0, 3), torch.full((2, 3), torch.nan)])
def test_errors_name_the_argument(given):
    with pytest.raises((TypeError, ValueError), match=r"^example: "):
        trace(nn.Linear(3, 2), given)


def test_words_of_refusals():
    for module in (nn.ModuleList([nn.Linear(3, 2)]), nn.Module()):
        with pytest.raises(ValueError, match="has no forward"):
            trace(module, normal(2, 3))
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight.data = net[0].weight.data
    with pytest.raises(ValueError, match=r"same memory .* separate ones$"):
        trace(net, normal(2, 3))
    with pytest.raises(ValueError, match=r"runs on x of shape \(N, 3\) in torch.float32, but not in torch.float64"):
        trace(of(lambda m, x: m.a(x.float()), **linear()), normal(2, 3))


def test_no_module():
    with pytest.raises(TypeError, match="net: got"):
        trace("net", normal(2, 3))
    with pytest.raises(ValueError, match="example: got"):
        trace(bnrank.MLP([3, 2]), normal(2, 4))
    with pytest.raises(ValueError, match="failed on x of shape"):
        trace(nn.Linear(3, 2), normal(2, 4))


def tied():
    embedding, head = nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)
    head.weight = embedding.weight
    return Of(lambda m, x: m.head(m.back(m.embedding(x))), embedding=embedding, back=nn.Linear(4, 3), head=head)


def overlapping():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight.data = module[0].weight.data
    return module


def twice():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


def partly():
    return Of(
        lambda m, x: functional.linear(x, m.w[:2]) + functional.linear(x, m.w[1:]), w=nn.Parameter(torch.zeros(3, 3))
    )


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (tied, ["embedding.weight", "head.weight", "'embedding'", "'head'"]),
        (overlapping, ["0.weight", "1.weight", "same memory"]),
        (twice, ["0.weight", "2.weight", "'0'", "'0_1'"]),
        (partly, ["w (registered as w) is used", "'linear'", "'linear_1'"]),
    ],
)
def test_shared_weights_are_named(make, names):
    with pytest.raises(ValueError, match="net: ") as caught:
        trace(make(), normal(2, 3).float())
    for name in names:
        assert name in str(caught.value)


def test_parts_of_a_parameter_that_do_not_overlap_are_not_shared():
    module = of(
        lambda m, x: functional.linear(x, m.w[:2]) + functional.linear(x, m.w[2:]), w=nn.Parameter(torch.zeros(4, 3))
    )
    graph = trace(module, normal(2, 3))
    assert [node.op for node in graph] == ["input", "outside", "outside", "add"]


def test_shared_weights_in_a_dead_end_are_no_matter():
    module = of(lambda m, x: (m.a(m.b(x)), m.b(x))[1], a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"shared weights: b\.weight .* is used in 'b' and in 'b_1'"):
        trace(of(lambda m, x: m.b(x) + m.b(x), b=nn.Linear(3, 3)), normal(2, 3))
    assert [node.name for node in trace(module, normal(2, 3))] == ["input", "b_1"]


def test_hooks_are_part_of_the_module():
    seen = []
    module = seeded(lambda: nn.Sequential(nn.Linear(3, 2), nn.LeakyReLU()))
    module[0].register_forward_hook(lambda m, args, out: seen.append(out.detach().numpy()))
    assert [node.op for node in trace(module, normal(2, 3))] == ["input", "linear", "activation"]
    assert all(out.shape == (2, 2) for out in seen)
    handle = module.register_forward_hook(lambda m, args, out: 2 * out)
    assert [node.op for node in trace(module, normal(2, 3))] == ["input", "linear", "activation", "add"]
    handle.remove()
    module[0].register_forward_hook(lambda m, args, out: 2 * out)
    graph = trace(module, normal(2, 3))
    assert [node.op for node in graph] == ["input", "outside", "activation"]
    assert graph.outside[0].reason == "Linear does something else than its name and parameters say"


def test_hooks_on_gradients_are_outside():
    module = seeded(lambda: nn.Sequential(nn.Linear(3, 2), nn.LeakyReLU()))
    module[1].register_full_backward_hook(lambda m, before, after: tuple(2 * g for g in before))
    graph = trace(module, normal(2, 3))
    assert [node.op for node in graph] == ["input", "linear", "outside"]
    assert graph.outside[0].reason == "hooks may change its gradient"


def test_the_module_is_left_as_it_was():
    module = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.5), Of(lambda m, x: nn.ReLU()(x))
    ).train()
    module[1].eval()
    hook = module[0].register_forward_hook(lambda m, args, out: None)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    attributes = [dict(vars(sub)) for sub in module.modules()]
    state, x = torch.get_rng_state(), normal(4, 3).float()
    kept = x.clone()
    trace(module, x)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(x, kept)
    assert [dict(vars(sub)) for sub in module.modules()] == attributes
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(p.grad is None and p.dtype == torch.float32 for p in module.parameters())
    assert list(module[0]._forward_hooks) == [hook.id]
    assert [sub.training for sub in module] == [True, False, True, True, True]


def test_buffers_that_forward_counts_in_are_left_alone():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.a(x)

    module = Counting().double()
    assert [node.op for node in trace(module, normal(2, 3))] == ["input", "linear"]
    assert module.calls == 0
