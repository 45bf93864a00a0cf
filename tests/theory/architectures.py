"""Small networks of every kind that the theory of invariants covers, and some that it does not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["ZOO", "Net", "build"]

relu = torch.relu


class Net(nn.Module):
    """A forward written as a function of the module and x; tensors become parameters."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor], **held: nn.Module | Tensor) -> None:
        super().__init__()
        self._function = forward
        for name, item in held.items():
            setattr(self, name, nn.Parameter(item) if isinstance(item, Tensor) else item)

    def forward(self, x: Tensor) -> Tensor:
        return self._function(self, x)


def fc(n_in: int, n_out: int, bias: bool = False) -> nn.Linear:
    return nn.Linear(n_in, n_out, bias)


def conv(n_in: int, n_out: int, kernel: int, bias: bool = False, **how: object) -> nn.Conv1d:
    return nn.Conv1d(n_in, n_out, kernel, bias=bias, **how)  # type: ignore[arg-type]


def conv2(n_in: int, n_out: int, kernel: int, bias: bool = False, **how: object) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, kernel, bias=bias, **how)  # type: ignore[arg-type]


def frozen(layer: nn.Linear | nn.Conv1d, weight: Tensor | None = None) -> nn.Module:
    if weight is not None:
        layer.weight.data.copy_(weight)
    layer.weight.requires_grad_(False)
    return layer


def blocks(skip: str, *, after: bool = False, linear: bool = False) -> nn.Module:
    """u, two residual blocks, v."""
    bend = (lambda h: h) if linear else relu

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        h = m.u(x)
        for y, z, d in ((m.y1, m.z1, m.d1), (m.y2, m.z2, m.d2)):
            kept = h if skip == "identity" else d * h if skip == "diagonal" else d(h)
            h = kept + z(bend(y(h)))
            h = relu(h) if after else h
        return m.v(h)

    def d() -> nn.Module | Tensor:
        return torch.randn(2) if skip == "diagonal" else fc(2, 2) if skip == "free" else nn.Identity()

    maps = {"u": fc(2, 2), "y1": fc(2, 3), "z1": fc(3, 2), "y2": fc(2, 2, True), "z2": fc(2, 2), "v": fc(2, 2)}
    return Net(forward, **maps, d1=d(), d2=d())


def dense(m: nn.Module, x: Tensor) -> Tensor:
    h = torch.cat([x, relu(m.a(x))], 1)
    return m.c(torch.cat([h, m.b(h)], 1))


def rezero(m: nn.Module, x: Tensor) -> Tensor:
    h = m.u(x)
    return m.v(h + m.t * m.b(relu(m.a(h))))


def layer_scale(m: nn.Module, x: Tensor) -> Tensor:
    h = m.u(x)
    return m.v((h + m.t * m.b(relu(m.a(h)))).flatten(1))


def gated(m: nn.Module, x: Tensor) -> Tensor:
    first, second = m.a(x).chunk(2, 1)
    return m.b(torch.cat([relu(first), second], 1))


ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(fc(2, 3), nn.ReLU(), fc(3, 2), nn.ReLU(), fc(2, 2)), (2,)),
    "mlp with biases": (
        lambda: nn.Sequential(fc(2, 3, True), nn.ReLU(), fc(3, 2, True), nn.ReLU(), fc(2, 2, True)),
        (2,),
    ),
    "linear network": (lambda: nn.Sequential(fc(2, 3, True), fc(3, 2), fc(2, 2, True)), (2,)),
    "leaky, then linear": (lambda: nn.Sequential(fc(2, 3), nn.LeakyReLU(0.3), fc(3, 2), fc(2, 2)), (2,)),
    "absolute value": (lambda: Net(lambda m, x: m.b(torch.abs(m.a(x))), a=fc(2, 3), b=fc(3, 2)), (2,)),
    "prelu": (lambda: nn.Sequential(fc(2, 3), nn.PReLU(), fc(3, 2)), (2,)),
    "prelu per channel": (lambda: nn.Sequential(fc(2, 3), nn.PReLU(3), fc(3, 2)), (2,)),
    "convolutions, zeros": (
        lambda: nn.Sequential(conv(1, 2, 2), conv(2, 2, 2, True, stride=2, padding=1), nn.Flatten(), fc(6, 2)),
        (1, 6),
    ),
    "convolutions, circular": (
        lambda: nn.Sequential(
            conv(1, 2, 3, padding=1, padding_mode="circular"), conv(2, 2, 2), nn.ReLU(), conv(2, 1, 2), nn.Flatten()
        ),
        (1, 4),
    ),
    "convolutions, reflected": (
        lambda: nn.Sequential(conv(1, 2, 2), conv(2, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten(), fc(6, 2)),
        (1, 4),
    ),
    "dilated": (lambda: nn.Sequential(conv(1, 2, 2), conv(2, 2, 2, dilation=2), nn.Flatten(), fc(6, 2)), (1, 6)),
    "images": (
        lambda: nn.Sequential(
            conv2(1, 2, 2), nn.ReLU(), conv2(2, 3, 2, stride=2), conv2(3, 2, 1), nn.Flatten(), fc(2, 2, True)
        ),
        (1, 4, 3),
    ),
    "average pooling": (
        lambda: nn.Sequential(conv(1, 2, 2), nn.AvgPool1d(2), conv(2, 2, 2), nn.Flatten(), fc(2, 2)),
        (1, 6),
    ),
    "max pooling": (
        lambda: nn.Sequential(conv(1, 2, 2), nn.MaxPool1d(2), conv(2, 2, 2), nn.Flatten(), fc(2, 2)),
        (1, 6),
    ),
    "global average": (
        lambda: nn.Sequential(conv(1, 3, 2), nn.AdaptiveAvgPool1d(1), nn.Flatten(), fc(3, 2)),
        (1, 5),
    ),
    "groups": (lambda: nn.Sequential(conv(1, 4, 2), conv(4, 4, 2, groups=2), nn.Flatten(), fc(4, 2)), (1, 3)),
    "groups and relu": (
        lambda: nn.Sequential(conv(1, 4, 2), nn.ReLU(), conv(4, 4, 1, groups=2), nn.Flatten(), fc(8, 2)),
        (1, 3),
    ),
    "depthwise": (lambda: nn.Sequential(conv(1, 3, 2), conv(3, 3, 2, groups=3), conv(3, 2, 1), nn.Flatten()), (1, 4)),
    "identity blocks": (lambda: blocks("identity"), (2,)),
    "identity blocks, relu after": (lambda: blocks("identity", after=True), (2,)),
    "identity blocks, linear": (lambda: blocks("identity", linear=True), (2,)),
    "diagonal blocks": (lambda: blocks("diagonal"), (2,)),
    "diagonal blocks, linear": (lambda: blocks("diagonal", linear=True), (2,)),
    "free blocks": (lambda: blocks("free"), (2,)),
    "free blocks, linear": (lambda: blocks("free", linear=True), (2,)),
    "free blocks, relu after": (lambda: blocks("free", after=True), (2,)),
    "linear layer as a block": (
        lambda: Net(lambda m, x: m.v((h := m.u(x)) + m.a(h)), u=fc(2, 3), a=fc(3, 3), v=fc(3, 2)),
        (2,),
    ),
    "skip times a half": (
        lambda: Net(
            lambda m, x: m.v(0.5 * (h := m.u(x)) + m.b(relu(m.a(h)))), u=fc(2, 2), a=fc(2, 2), b=fc(2, 2), v=fc(2, 2)
        ),
        (2,),
    ),
    "skip from the input to the output": (
        lambda: Net(lambda m, x: x + m.b(relu(m.a(x))), a=fc(2, 3), b=fc(3, 2)),
        (2,),
    ),
    "dense": (lambda: Net(dense, a=fc(2, 2), b=fc(4, 2), c=fc(6, 2)), (2,)),
    "parallel, concatenated": (
        lambda: Net(lambda m, x: m.c(torch.cat([m.a(x), m.b(x)], 1)), a=fc(2, 2), b=fc(2, 1), c=fc(3, 2)),
        (2,),
    ),
    "parallel, summed": (
        lambda: Net(lambda m, x: m.c(m.a(x)) + m.d(m.b(x)), a=fc(2, 2), b=fc(2, 1), c=fc(2, 2), d=fc(1, 2)),
        (2,),
    ),
    "parallel, one with a relu": (lambda: Net(gated, a=fc(2, 4), b=fc(4, 2)), (2,)),
    "tokens": (lambda: nn.Sequential(fc(2, 3), fc(3, 2, True), nn.Flatten(), fc(6, 2)), (3, 2)),
    "mean over tokens": (lambda: Net(lambda m, x: m.b(m.a(x).mean(1)), a=fc(2, 3), b=fc(3, 2)), (3, 2)),
    "permuted and flattened": (
        lambda: Net(lambda m, x: m.b(m.a(x).transpose(1, 2).flatten(1)), a=conv(1, 2, 2), b=fc(6, 2)),
        (1, 4),
    ),
    "rezero": (lambda: Net(rezero, u=fc(2, 2), a=fc(2, 3), b=fc(3, 2), v=fc(2, 2), t=torch.randn(1)), (2,)),
    "number between": (lambda: Net(lambda m, x: m.b(m.t * m.a(x)), a=fc(2, 3), b=fc(3, 2), t=torch.randn(1)), (2,)),
    "number at the end": (
        lambda: Net(lambda m, x: m.t * m.b(relu(m.a(x))), a=fc(2, 3), b=fc(3, 2), t=torch.randn(1)),
        (2,),
    ),
    "number per position, fc behind": (
        lambda: Net(lambda m, x: m.c((m.t * relu(m.a(x))).flatten(1)), a=fc(2, 2), c=fc(6, 2), t=torch.randn(3, 1)),
        (3, 2),
    ),
    "number per position, linear": (
        lambda: Net(lambda m, x: m.c((m.t * m.a(x)).flatten(1)), a=conv(1, 2, 1), c=fc(6, 2), t=torch.randn(3)),
        (1, 3),
    ),
    "number per position, fc before": (
        lambda: Net(
            lambda m, x: m.c(m.t * m.a(x).unflatten(1, (2, 3))).flatten(1),
            a=fc(2, 6),
            c=conv(2, 1, 1),
            t=torch.randn(3),
        ),
        (2,),
    ),
    "number per position at the end": (
        lambda: Net(lambda m, x: (m.t * m.c(relu(m.a(x)))).flatten(1), a=fc(2, 2), c=fc(2, 2), t=torch.randn(3, 1)),
        (3, 2),
    ),
    "scale per channel": (
        lambda: Net(layer_scale, u=conv(1, 2, 1), a=conv(2, 2, 1), b=conv(2, 2, 1), v=fc(6, 2), t=torch.randn(1, 2, 1)),
        (1, 3),
    ),
    "frozen identity": (lambda: nn.Sequential(fc(2, 3), frozen(fc(3, 3), torch.eye(3)), fc(3, 2)), (2,)),
    "frozen, two channels alike": (
        lambda: nn.Sequential(fc(2, 3), frozen(fc(3, 3), torch.diag(torch.tensor([1.0, 2, 2]))), fc(3, 2)),
        (2,),
    ),
    "frozen first": (lambda: nn.Sequential(frozen(fc(2, 3)), nn.ReLU(), fc(3, 3), fc(3, 2)), (2,)),
    "frozen groups": (
        lambda: nn.Sequential(
            conv(1, 2, 2), frozen(conv(2, 2, 1, groups=2), torch.tensor([[[1.0]], [[2]]])), nn.Flatten(), fc(4, 2)
        ),
        (1, 3),
    ),
    "frozen bias": (
        lambda: nn.Sequential(fc(2, 3), Net(lambda m, h: m.f(h), f=_bias(fc(3, 3, True))), fc(3, 2)),
        (2,),
    ),
    "sigmoid between": (
        lambda: nn.Sequential(fc(2, 3), nn.ReLU(), fc(3, 2), nn.Sigmoid(), fc(2, 2), fc(2, 2)),
        (2,),
    ),
    "dropout between": (lambda: nn.Sequential(fc(2, 3), nn.ReLU(), nn.Dropout(0.5), fc(3, 2), fc(2, 2)), (2,)),
    "one layer": (lambda: fc(2, 3), (2,)),
}


def _bias(layer: nn.Linear) -> nn.Linear:
    layer.bias.data[0] = 0.0
    layer.bias.requires_grad_(False)
    return layer


def build(name: str, seed: int = 0) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a network and the shape of a sample; the global random state is left alone."""
    make, shape = ZOO[name]
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        net = make()
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.7
    return net.double(), shape
