import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from bnrank.networks.graph import Node, trace
from bnrank.networks.graph.nodes import apply
from helpers import normal
from networks.graph_modules import Of, seeded
from networks.graph_oracle import evaluate

P = nn.Parameter
F = functional


def read(function_or_module, x, **attributes):
    """Return a module's graph, verified by loops against its output."""
    given = function_or_module
    module = given if isinstance(given, nn.Module) else seeded(lambda: Of(lambda m, x: given(m, x), **attributes))
    graph = trace(module, x)
    if not graph.outside:
        with torch.no_grad():
            expected = module(x).numpy()
        np.testing.assert_allclose(evaluate(graph, module, x), expected, rtol=1e-12, atol=1e-12)
    return graph


AVERAGES = {
    "1d": (nn.AvgPool1d(2), (3, 7)),
    "2d": (nn.AvgPool2d((2, 3), stride=(1, 2)), (2, 5, 7)),
    "3d": (nn.AvgPool3d(2), (1, 4, 2, 3)),
    "padded": (nn.AvgPool2d(3, 2, padding=1), (2, 5, 4)),
    "padding not counted": (nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), (2, 5, 4)),
    "ceil": (nn.AvgPool2d(2, ceil_mode=True), (2, 5, 3)),
    "divisor": (nn.AvgPool2d(2, divisor_override=1), (2, 4, 4)),
    "adaptive": (nn.AdaptiveAvgPool2d((2, 3)), (2, 5, 4)),
    "adaptive 1d": (nn.AdaptiveAvgPool1d(2), (2, 5)),
    "functional": (Of(lambda m, x: F.avg_pool2d(x, 2, stride=1)), (2, 4, 4)),
    "functional adaptive": (Of(lambda m, x: F.adaptive_avg_pool2d(x, 1)), (2, 4, 4)),
    "mean": (Of(lambda m, x: x.mean((2, 3))), (2, 3, 4)),
    "mean, kept": (Of(lambda m, x: torch.mean(x, dim=[-1], keepdim=True)), (2, 3, 4)),
    "mean of tokens": (Of(lambda m, x: x.mean(1)), (3, 4)),
    "sum": (Of(lambda m, x: x.sum(dim=(1, 3))), (2, 3, 4)),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_averages(name):
    module, shape = AVERAGES[name]
    graph = read(module, normal(3, *shape))
    assert [node.op for node in graph] == ["input", "average"]
    node = graph.nodes[1]
    positions = np.prod([shape[d] for d in node.dims])
    assert node.windows.shape[1] == positions
    if name not in ("padded", "sum", "divisor"):
        np.testing.assert_allclose(node.windows.sum(1), 1)
    if name == "sum":
        assert (node.dims, node.windows.tolist()) == ((0, 2), [[1.0] * 8])
    if name == "2d":
        assert (node.kernel, node.stride, node.padding, node.dims) == ((2, 3), (1, 2), (0, 0), (1, 2))
    if name == "adaptive":
        assert node.kernel == ()


MAXIMA = {
    "1d": (nn.MaxPool1d(2), (3, 7)),
    "dilated": (nn.MaxPool2d(2, 1, dilation=2), (2, 5, 4)),
    "padded": (nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), (2, 5, 4)),
    "adaptive": (nn.AdaptiveMaxPool2d((2, 3)), (2, 5, 4)),
    "functional": (Of(lambda m, x: F.max_pool2d(x, 2)), (2, 4, 4)),
    "amax": (Of(lambda m, x: x.amax(1)), (3, 4)),
}


@pytest.mark.parametrize("name", MAXIMA)
def test_maxima(name):
    module, shape = MAXIMA[name]
    graph = read(module, -1 - normal(3, *shape).abs())  # padding is no zero: all entries are less
    assert [node.op for node in graph] == ["input", "maximum"]
    assert set(np.unique(graph.nodes[1].windows)) <= {0.0, 1.0}


def test_windows_that_are_too_large_are_left_out():
    graph = trace(nn.AvgPool2d(2, 1), normal(2, 1, 50, 50))
    assert graph.nodes[1].windows is None
    with pytest.raises(ValueError, match="fields say"):
        apply(graph.nodes[1], [normal(2, 1, 50, 50)], {})


ORDERS = {
    "flatten": lambda m, x: x.flatten(1),
    "permute": lambda m, x: x.permute(0, 3, 1, 2),
    "transpose": lambda m, x: torch.transpose(x, 1, 3),
    "reshape": lambda m, x: x.reshape(len(x), -1, 2),
    "view": lambda m, x: x.transpose(1, 2).contiguous().view(x.shape[0], -1),
    "chunk": lambda m, x: torch.cat([part * 2 for part in x.chunk(2, 1)], 3),
    "split": lambda m, x: x.split([1, 2], 2)[1],
    "unbind": lambda m, x: x.unbind(1)[0],
    "stack": lambda m, x: torch.stack([x[:, 0], x[:, 1]], 1),
    "stack in front": lambda m, x: torch.stack([x, -x])[1],
    "samples last": lambda m, x: x.movedim(0, -1).flip(0).movedim(-1, 0),
    "strided": lambda m, x: x[:, :, ::2, 1:],
    "pick": lambda m, x: x[:, torch.tensor([1, 1, 0])],
    "roll": lambda m, x: x.roll((1, 2), (2, 3)),
    "pad": lambda m, x: F.pad(x, (1, 2)),
    "pad circularly": lambda m, x: F.pad(x, (1, 1, 0, 2), mode="circular"),
    "pad with zeros": lambda m, x: torch.cat([x, torch.zeros(len(x), 1, 3, 4, dtype=x.dtype)], 1),
    "new zeros": lambda m, x: torch.cat([x, x.new_zeros(len(x), 1, 3, 4)], 1),
    "expand": lambda m, x: x[:, :, :, :1].expand(-1, -1, -1, 5),
    "repeat": lambda m, x: x.repeat(1, 2, 1, 1),
    "module pad": nn.ZeroPad2d((1, 0, 2, 0)),
    "pixel shuffle": nn.PixelUnshuffle(1),
    "unfold": nn.Unfold(2),
    "nearest": nn.Upsample(scale_factor=2),
    "unflatten": nn.Sequential(nn.Flatten(), nn.Unflatten(1, (4, 6))),
    "mask": lambda m, x: x.masked_fill(torch.eye(3, 4, dtype=torch.bool), 0.0),
    "triangle": lambda m, x: x.tril(),
}


@pytest.mark.parametrize("name", ORDERS)
def test_reorderings(name):
    graph = read(ORDERS[name], normal(5, 2, 3, 4))
    assert graph.outside == ()
    assert {node.op for node in graph} <= {"input", "index", "add"}


ONE_NUMBER = {
    "stack": lambda x: torch.stack([x[:, 0], x[:, 2]], 1),
    "unbind": lambda x: torch.stack(x.unbind(1)[::-1], 1),
    "sum": lambda x: x.sum(1).unsqueeze(1),
    "squeeze": lambda x: x[:, :1].squeeze(-1)[:, None],
    "flattened": lambda x: x[:, :1].reshape(-1).reshape(-1, 1),
}


@pytest.mark.parametrize("name", ONE_NUMBER)
def test_values_of_one_number_per_sample_are_reordered(name):
    function = ONE_NUMBER[name]
    graph = read(
        lambda m, x: m.b(function(m.a(x))),
        normal(4, 2),
        a=nn.Linear(2, 3),
        b=nn.Linear(function(normal(1, 3)).shape[1], 2),
    )
    assert not graph.outside


ALLOCATED = {
    "zeros": lambda x: torch.zeros(len(x), 4, dtype=x.dtype),
    "empty": lambda x: torch.empty((len(x), 4), dtype=x.dtype),
    "new_zeros": lambda x: x.new_zeros(len(x), 4),
    "new_empty": lambda x: x.new_empty((len(x), 4)),
}


@pytest.mark.parametrize("name", ALLOCATED)
@pytest.mark.parametrize("all_of_it", [True, False])
def test_outputs_that_are_allocated_first(name, all_of_it):
    def forward(m, x):
        out = ALLOCATED[name](x)
        h = m.a(x)
        out[:, :2] = h
        if all_of_it:
            out[:, 2:] = torch.relu(h)
        elif "empty" in name:
            out[:, 2:] = 0
        return m.b(out)

    graph = read(forward, normal(4, 2), a=nn.Linear(2, 2), b=nn.Linear(4, 3))
    assert not graph.outside
    ops = [node.op for node in graph]
    assert (ops.count("linear"), ops.count("activation")) == (2, int(all_of_it))


def test_numbers_that_are_allocated_and_not_written_over_are_outside():
    def forward(m, x):
        out = x.new_ones(len(x), 4)
        out[:, :2] = m.a(x)
        return m.b(out)

    graph = read(forward, normal(4, 2), a=nn.Linear(2, 2), b=nn.Linear(4, 3))
    assert [o.reason for o in graph.outside] == ["puts in numbers that do not come from the input"]


CASTS = {
    "float32 at the end": (lambda m, x: m.b(torch.relu(m.a(x))).float(), ["input", "linear", "activation", "linear"]),
    "half, then an activation": (
        lambda m, x: torch.relu(m.a(x).half()),
        ["input", "linear", "outside", "activation"],
    ),
    "float32 in between": (lambda m, x: m.b(m.a(x).float().to(x.dtype)), ["input", "linear", "outside", "linear"]),
    "float64": (lambda m, x: m.a(x.double()).to(torch.float64).type_as(x), ["input", "linear"]),
    "int": (lambda m, x: m.b(m.a(x).int().double()), ["input", "linear", "outside", "outside", "linear"]),
}


@pytest.mark.parametrize("name", CASTS)
def test_casts(name):
    function, ops = CASTS[name]
    graph = trace(seeded(lambda: Of(function, a=nn.Linear(2, 3), b=nn.Linear(3, 2))), normal(4, 2))
    assert [node.op for node in graph] == ops
    if name == "int":
        assert graph.outside[0].reason == "no gradient flows through a cast to int32"


def written_where_negative(m, x):
    h = m.a(x)
    h[h < 0] = 0
    return m.b(h)


BY_DATA = {
    "mask": lambda m, x: m.b((h := m.a(x)).masked_fill(h < 0, 0)),
    "mask of the input": lambda m, x: m.b(m.a(x).masked_fill(x[:, :1] > 0, 0)),
    "gather": lambda m, x: m.b((h := m.a(x)).gather(1, h.argsort(1))),
    "take_along_dim": lambda m, x: m.b(torch.take_along_dim(h := m.a(x), h.argsort(1), 1)),
    "index": lambda m, x: m.b((h := m.a(x))[torch.arange(len(x))[:, None], h.argsort(1)]),
    "written": written_where_negative,
}


@pytest.mark.parametrize("name", BY_DATA)
def test_which_entries_depends_on_the_data(name):
    forward = BY_DATA[name]
    module = seeded(lambda: Of(lambda m, x: m.d(torch.relu(forward(m, x))), **{k: nn.Linear(3, 3) for k in "abd"}))
    graph = trace(module, normal(4, 3))
    assert graph.outside[-1].reason == "which entries it takes depends on the data"
    assert [node.name for node in graph if node.op == "linear"] == ["a", "b", "d"]


def test_an_entry_is_written_to_another():
    def forward(m, x):
        h = m.a(x)
        h[:, 0] = h[:, 1]
        return m.b(h)

    graph = read(forward, normal(4, 2), a=nn.Linear(2, 3), b=nn.Linear(3, 2))
    assert not graph.outside


def test_what_changes_nothing_is_no_node():
    graph = read(nn.Sequential(nn.Identity(), nn.Dropout(0.0), Of(lambda m, x: x.contiguous().clone())), normal(3, 4))
    assert [node.op for node in graph] == ["input"]
    assert graph.output == "input"


def test_an_index_takes_only_what_it_needs():
    graph = read(lambda m, x: torch.cat([m.a(x), m.b(x)], 1)[:, 5:], normal(3, 4), a=nn.Linear(4, 5), b=nn.Linear(4, 2))
    assert graph.nodes[-1].inputs == ("cat",)
    swapped = read(
        lambda m, x: torch.cat([m.a(x), m.b(x)], 1).flip(1), normal(3, 4), a=nn.Linear(4, 1), b=nn.Linear(4, 2)
    )
    assert swapped["cat"].index.tolist() == [0, 1, 2]
    assert swapped["flip"].index.tolist() == [2, 1, 0]
    padded = read(lambda m, x: F.pad(x, (1, 1)), normal(3, 2))
    assert padded.nodes[1].index.tolist() == [-1, 0, 1, -1]


@pytest.mark.parametrize(
    ("function", "factors"),
    [
        (lambda m, x: x + m.a(x), (1, 1)),
        (lambda m, x: m.a(x) - x, (1, -1)),
        (lambda m, x: torch.sub(m.a(x), x, alpha=3), (1, -3)),
        (lambda m, x: m.a(x).add(x, alpha=0.5), (1, 0.5)),
        (lambda m, x: -m.a(x), (-1,)),
        (lambda m, x: 3 * m.a(x), (3,)),
        (lambda m, x: m.a(x) / 4, (0.25,)),
        (lambda m, x: m.a(x) * torch.tensor(2.0), (2,)),
        (lambda m, x: 0 - m.a(x), (-1,)),
        (lambda m, x: torch.neg(m.a(x)), (-1,)),
        (lambda m, x: torch.rsub(m.a(x), x), (-1, 1)),
        (lambda m, x: m.a(x) + m.a.bias.new_zeros(4) + x, (1, 1)),
    ],
)
def test_sums_and_multiples(function, factors):
    graph = read(function, normal(3, 4), a=nn.Linear(4, 4))
    assert sorted(graph.nodes[-1].factors) == sorted(factors)


def test_sum_broadcasts():
    graph = read(lambda m, x: m.a(x) + x.mean(1, keepdim=True), normal(3, 4), a=nn.Linear(4, 4))
    assert [node.op for node in graph] == ["input", "linear", "average", "index", "add"]
    assert graph["add_expand"].index.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda m, x: x * m.d[:, None, None], (2, 1, 1)),
        (lambda m, x: m.d.view(1, -1, 1, 1) * x, (1, 2, 1, 1)),
        (lambda m, x: torch.mul(x.transpose(1, 3), m.d), (2,)),
        (lambda m, x: x * m.s, ()),
    ],
)
def test_diagonals(function, shape):
    attributes = {"d": P(torch.zeros(2)), "s": P(torch.tensor(2.0))}
    node = read(function, normal(3, 2, 4, 4), **attributes).nodes[-1]
    assert (node.op, node.weight_shape) == ("diagonal", shape)


TWO = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}
OUTSIDE = {
    "product of two values": lambda m, x: m.a(x) * m.b(x),
    "divides by a value": lambda m, x: m.a(x) / m.b(x),
    "adds a number": lambda m, x: m.a(x) + 1,
    "not positively homogeneous": lambda m, x: m.a(x).sigmoid(),
    "only clamp": lambda m, x: m.a(x).clamp(-1, 1),
    "softmax": lambda m, x: F.softmax(m.a(x), -1),
    "dropout with p = 0.5": lambda m, x: F.dropout(m.a(x), 0.5, m.training),
    "no gradient": lambda m, x: m.a(x).detach() + x,
    "normalization": lambda m, x: F.layer_norm(m.a(x), (4,)),
    "mixes samples": lambda m, x: m.a(x) - m.b(x).mean(0),
    "where is not among": lambda m, x: torch.where(m.a(x) > 0, x, -x),
    "cumsum is not among": lambda m, x: m.a(x).cumsum(1),
    "from the left": lambda m, x: m.w @ m.a(x)[:, :, None],
    "fixed numbers": lambda m, x: m.a(x) * m.mask,
    "computed from w": lambda m, x: m.a(x) @ (2 * m.w),
    "puts in numbers": lambda m, x: F.pad(m.a(x), (1, 1), value=1.0),
    "subtracts a parameter": lambda m, x: m.a(x) - m.d,
    "a parameter per sample": lambda m, x: m.a(x) * m.s,
    "term is computed from w": lambda m, x: m.a(x)[:, None] + F.embedding(torch.arange(4), m.w),
}


@pytest.mark.parametrize("reason", OUTSIDE)
def test_outside_with_its_reason(reason):
    held = {**TWO, "w": P(torch.zeros(4, 4)), "d": P(torch.zeros(4)), "s": P(torch.zeros(2, 1))}
    held["mask"] = torch.eye(4)[0]
    graph = trace(seeded(lambda: Of(lambda m, x: OUTSIDE[reason](m, x), **held)), normal(2, 4))
    assert any(reason in o.reason for o in graph.outside), graph.outside
    assert graph["a"].op == "linear"


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: x.flip(0),
        lambda m, x: x.roll(1, 0),
        lambda m, x: x[:1].expand(len(x), -1),
        lambda m, x: torch.cat([x[1:], x[:1]]),
        lambda m, x: torch.stack([x[0], x[1].flip(0)]),
    ],
)
def test_what_exchanges_samples_is_outside(function):
    graph = trace(seeded(lambda: Of(lambda m, x: m.a(function(m, x)), a=nn.Linear(4, 2))), normal(2, 4))
    assert "outside" in [node.op for node in graph]
    assert any("samples" in o.reason for o in graph.outside)


def test_attention_by_hand_is_outside_and_what_comes_after_is_read():
    def forward(m, x):
        n, length, _ = x.shape
        heads = [part.view(n, length, 2, 2).transpose(1, 2).reshape(2 * n, length, 2) for part in m.a(x).chunk(3, -1)]
        weights = (torch.bmm(heads[0], heads[1].mT) / 2).softmax(-1)
        mixed = torch.bmm(weights, heads[2]).view(n, 2, length, 2).transpose(1, 2).reshape(n, length, 4)
        return m.b(mixed) + x

    graph = trace(seeded(lambda: Of(forward, a=nn.Linear(4, 12), b=nn.Linear(4, 4))), normal(3, 5, 4))
    assert [o.name for o in graph.outside] == ["bmm", "softmax", "bmm_1"]
    assert (graph["b"].op, graph["add"].op, graph["b"].shape) == ("linear", "add", (5, 4))
    assert graph["bmm_1"].shape == (2, 5, 2)


MODULES = {
    "BatchNorm1d": (nn.BatchNorm1d(4), "normalization"),
    "LayerNorm": (nn.LayerNorm(4), "normalization"),
    "GroupNorm": (nn.GroupNorm(2, 4), "normalization"),
    "Dropout": (nn.Dropout(0.3), "dropout with p = 0.3"),
    "GELU": (nn.GELU(), "not positively homogeneous"),
    "ReLU6": (nn.ReLU6(), "not positively homogeneous"),
    "Hardtanh": (nn.Hardtanh(), "not positively homogeneous"),
    "Softmax": (nn.Softmax(-1), "softmax"),
    "RReLU": (nn.RReLU(), "random"),
    "Threshold": (nn.Threshold(1.0, 0.0), "threshold other than 0"),
}


@pytest.mark.parametrize("kind", MODULES)
def test_modules_outside(kind):
    module, reason = MODULES[kind]
    net = nn.Sequential(nn.Linear(4, 4), module, nn.Linear(4, 2)).double()
    graph = trace(net, normal(3, 4))
    assert [node.op for node in graph] == ["input", "linear", "outside", "linear"]
    (outside,) = graph.outside
    assert (outside.name, outside.type) == ("1", kind)
    assert reason in outside.reason


def test_transposed_convolution_is_outside():
    (outside,) = trace(nn.Sequential(nn.ConvTranspose1d(2, 2, 3)).double(), normal(2, 2, 5)).outside
    assert "transposed" in outside.reason


def test_embedding_is_outside():
    net = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    graph = trace(net, torch.randint(0, 5, (3, 6), generator=torch.Generator().manual_seed(0)))
    assert [node.op for node in graph] == ["input", "outside", "linear", "activation", "linear"]
    assert graph["0"].held == ("0.weight",)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("change", "held"),
    [
        (nn.utils.parametrizations.weight_norm, "0.parametrizations"),
        (nn.utils.parametrizations.orthogonal, "0.parametrizations"),
        (nn.utils.weight_norm, "0.weight_g"),
        (nn.utils.spectral_norm, "0.weight_orig"),
    ],
)
def test_computed_weights_are_outside(change, held):
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    change(net[0])
    graph = trace(net, normal(3, 4))
    assert [node.op for node in graph] == ["input", "outside", "activation", "linear"]
    assert "parametri" in graph.outside[0].reason or "computed from" in graph.outside[0].reason
    assert any(name.startswith(held) for name in graph["0"].held)


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def test_a_function_with_a_gradient_of_its_own_is_outside():
    graph = read(lambda m, x: m.b(Reversal.apply(m.a(x))), normal(3, 4), **TWO)
    assert [node.op for node in graph] == ["input", "linear", "outside", "linear"]
    assert "gradient" in graph.outside[0].reason
    assert Reversal.apply(torch.ones(2)).tolist() == [1, 1]  # as it was


def test_no_grad_in_forward_is_outside():
    def forward(m, x):
        with torch.no_grad():
            h = m.a(x)
        return m.b(h)

    graph = trace(seeded(lambda: Of(forward, **TWO)), normal(3, 4))
    assert [node.op for node in graph] == ["input", "outside", "linear"]
    assert graph["a"].held == ("a.bias", "a.weight")


def test_a_subclass_that_does_something_else_is_followed():
    class Scaled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    class Plain(nn.Linear):
        pass

    graph = read(seeded(lambda: nn.Sequential(Plain(3, 4), Scaled(4, 2))), normal(3, 3))
    assert [node.op for node in graph] == ["input", "linear", "linear", "add"]


def test_apply_needs_an_operation():
    with pytest.raises(ValueError, match="'a'"):
        apply(Node("a", "outside", (), (3,)), [], {})
