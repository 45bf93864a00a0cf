"""Networks as they come: in every mode, tied, frozen, scripted, quantized, broken; each built anew from small parts."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Build = Callable[[nn.Module], Any]


class Raises(nn.Module):
    """Raises on every call."""

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("broken on purpose")


class Returns(nn.Module):
    """Returns what a function makes of the network's output."""

    def __init__(self, net: nn.Module, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.change = net, change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.net(x))


class ChangesInput(nn.Module):
    """Writes into its input."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.mul_(2))


class ChangesState(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.net(x) + 0 * self.calls


class Random(nn.Module):
    """Adds noise from the global generator."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        return y + torch.randn_like(y)


class TwoInputs(nn.Module):
    """Takes two inputs."""

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return x + z


class Subclass(nn.Linear):
    """A layer whose class is not torch's."""


def _linears(net: nn.Module) -> list[nn.Linear]:
    return [m for m in net.modules() if isinstance(m, nn.Linear)]


def _sequential(net: nn.Module) -> nn.Sequential:
    """Return a Sequential of the network's linear layers with ReLU between; of 3 inputs where there are none."""
    parts: list[nn.Module] = []
    for p in (p for p in net.parameters() if p.ndim == 2):
        layer = nn.Linear(p.shape[1], p.shape[0])
        parts += [layer.to(p.dtype) if p.dtype.is_floating_point else layer, nn.ReLU()]
    return nn.Sequential(*parts[:-1]) if parts else nn.Sequential(nn.Linear(3, 2))


def _frozen(net: nn.Module, every: bool) -> nn.Module:
    for i, p in enumerate(net.parameters()):
        if every or i == 0:
            p.requires_grad_(False)
    return net


def _tied(net: nn.Module) -> nn.Module:
    parts = _sequential(net)
    outputs = _linears(parts)[-1].out_features
    shared = nn.Linear(outputs, outputs)
    return nn.Sequential(parts, nn.ReLU(), shared, nn.ReLU(), shared)


def _filled(net: nn.Module, value: float) -> nn.Module:
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(value)
    return net


def _quantized(net: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(_sequential(net), {nn.Linear}, dtype=torch.qint8)


def _quiet(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def _hooked(net: nn.Module) -> nn.Module:
    net.register_forward_hook(lambda module, inputs, output: output * 1.0)
    return net


def _parametrized(net: nn.Module, kind: Callable[..., Any]) -> nn.Module:
    parts = _sequential(net)
    kind(_linears(parts)[0])
    return parts


def _inner(net: nn.Module, *parts: nn.Module) -> nn.Module:
    made = _sequential(net)
    return nn.Sequential(*list(made)[:1], *parts, *list(made)[1:])


def _normalized(net: nn.Module) -> nn.Module:
    return _inner(net, nn.BatchNorm1d(_linears(_sequential(net))[0].out_features))


def _ndim(net: nn.Module) -> Tensor:
    first = next((p for p in net.parameters() if p.ndim > 1), None)
    return torch.randn(2, 3 if first is None else first.shape[1]) if first is None or first.ndim == 2 else torch.ones(0)


NETWORKS: dict[str, Build] = {
    "training mode": lambda net: net.train(),
    "eval mode": lambda net: net.eval(),
    "sequential": _sequential,
    "dropout in training mode": lambda net: _inner(net, nn.Dropout(0.5)).train(),
    "dropout in eval mode": lambda net: _inner(net, nn.Dropout(0.5)).eval(),
    "batch norm in training mode": lambda net: _normalized(net).train(),
    "batch norm in eval mode": lambda net: _normalized(net).eval(),
    "tied": _tied,
    "first frozen": lambda net: _frozen(net, False),
    "all frozen": lambda net: _frozen(net, True),
    "no parameters": lambda net: nn.ReLU(),
    "identity": lambda net: nn.Identity(),
    "empty": lambda net: nn.Sequential(),
    "nested": lambda net: nn.Sequential(nn.Sequential(), nn.Sequential(nn.Sequential(_sequential(net)))),
    "tanh": lambda net: _inner(net, nn.Tanh()),
    "gelu": lambda net: _inner(net, nn.GELU()),
    "softmax": lambda net: _inner(net, nn.Softmax(dim=1)),
    "prelu": lambda net: _inner(net, nn.PReLU()),
    "lstm": lambda net: nn.LSTM(3, 2),
    "attention": lambda net: nn.MultiheadAttention(4, 2),
    "embedding": lambda net: nn.Embedding(3, 2),
    "scripted": lambda net: _quiet(lambda: torch.jit.script(_sequential(net))),
    "traced": lambda net: _quiet(lambda: torch.jit.trace(_sequential(net), _ndim(_sequential(net)))),
    "compiled": lambda net: torch.compile(net, backend="eager"),
    "meta": lambda net: net.to("meta"),
    "half": lambda net: net.half(),
    "bfloat16": lambda net: net.bfloat16(),
    "float64": lambda net: net.double(),
    "complex": lambda net: net.to(torch.complex64),
    "mixed dtypes": lambda net: nn.Sequential(_sequential(net), nn.Identity(), nn.Linear(2, 2).double()),
    "lazy": lambda net: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2)),
    "data parallel": lambda net: nn.DataParallel(net),
    "quantized": _quantized,
    "raises": lambda net: Raises(),
    "returns a tuple": lambda net: Returns(net, lambda y: (y, y)),
    "returns a dict": lambda net: Returns(net, lambda y: {"y": y}),
    "returns None": lambda net: Returns(net, lambda y: None),
    "returns a float": lambda net: Returns(net, lambda y: 1.0),
    "returns NaN": lambda net: Returns(net, lambda y: y * float("nan")),
    "returns inf": lambda net: Returns(net, lambda y: y / 0),
    "returns one number": lambda net: Returns(net, lambda y: y.sum()),
    "returns fewer rows": lambda net: Returns(net, lambda y: y[:1]),
    "returns integers": lambda net: Returns(net, lambda y: y.round().long()),
    "returns complex": lambda net: Returns(net, lambda y: torch.complex(y, y)),
    "returns a constant": lambda net: Returns(net, torch.zeros_like),
    "returns detached": lambda net: Returns(net, lambda y: y.detach()),
    "returns three dimensions": lambda net: Returns(net, lambda y: y[..., None, None]),
    "returns sparse": lambda net: Returns(net, lambda y: y.to_sparse()),
    "numpy inside": lambda net: Returns(net, lambda y: torch.as_tensor(y.detach().numpy())),
    "changes its input": ChangesInput,
    "changes its state": ChangesState,
    "random": Random,
    "two inputs": lambda net: TwoInputs(),
    "weight norm": lambda net: _parametrized(net, nn.utils.parametrizations.weight_norm),
    "spectral norm": lambda net: _parametrized(net, nn.utils.parametrizations.spectral_norm),
    "old spectral norm": lambda net: _parametrized(net, nn.utils.spectral_norm),
    "pruned": lambda net: _parametrized(net, lambda m: nn.utils.prune.random_unstructured(m, "weight", 0.5)),
    "shared submodules": lambda net: nn.ModuleList([net, net]),
    "module list": lambda net: nn.ModuleList([net]),
    "module dict": lambda net: nn.ModuleDict({"a": net}),
    "subclass of a layer": lambda net: nn.Sequential(Subclass(3, 2)),
    "hooked": _hooked,
    "zero weights": lambda net: _filled(net, 0.0),
    "equal weights": lambda net: _filled(net, 1.0),
    "NaN weights": lambda net: _filled(net, float("nan")),
    "infinite weights": lambda net: _filled(net, float("inf")),
    "huge weights": lambda net: _filled(net, 1e30),
    "tiny weights": lambda net: _filled(net, 1e-30),
    "other inputs": lambda net: nn.Sequential(nn.Linear(7, 4), nn.ReLU(), nn.Linear(4, 2)),
    "other outputs": lambda net: nn.Sequential(_sequential(net), nn.ReLU(), nn.Linear(2, 5)),
    "convolution": lambda net: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.LazyLinear(2)),
    "transposed convolution": lambda net: nn.ConvTranspose1d(1, 2, 3),
    "wide": lambda net: nn.Sequential(nn.Linear(3, 2000), nn.ReLU(), nn.Linear(2000, 2)),
    "deep": lambda net: nn.Sequential(*[m for _ in range(40) for m in (nn.Linear(3, 3), nn.ReLU())], nn.Linear(3, 2)),
    "no outputs": lambda net: nn.Linear(3, 0),
    "class": lambda net: nn.Linear,
    "state dict": lambda net: net.state_dict(),
    "list of modules": lambda net: [net],
    "function": lambda net: lambda x: x,
    "parameters": lambda net: list(net.parameters()),
    "copy": copy.deepcopy,
}
"""What a network may be, made from a valid one."""
