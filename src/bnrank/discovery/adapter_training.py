"""Training of low-rank adapters, and the curvature in which units of their rank are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.discovery.compression.returned import confinement
from bnrank.measures.derivatives import differentiating
from bnrank.networks.inputs import Inputs, Samples, columns, main_output
from bnrank.training.objectives import LOSSES

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
IGNORED = -100  # class index of positions that do not count, as in torch
DAMPING = 0.1
"""Added to both second moments, in units of their mean eigenvalue."""
PENALTY = 1e-3
"""Of the squared norms of both factors over the norm of the weights, in units of the loss without adapters."""
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
"""Learning rates of Adam that are tried."""
Factors = dict[str, tuple[Tensor, Tensor]]  # (n_out, r) and (r, n_in) by layer


class Problem:
    """A network, its loss, the second moments of its layers, and adapters of them."""

    def __init__(
        self, net: nn.Module, layers: dict[str, Any], loss: Any, x: Samples, y: Tensor, chunk_size: int
    ) -> None:
        self.net, self.layers, self.loss, self.chunk_size = net, layers, loss, chunk_size
        for parameter in net.parameters():
            parameter.requires_grad_(False)
        for layer in layers.values():
            layer.weight.requires_grad_(True)
        first = next(iter(layers.values())).weight
        dtype = first.dtype if isinstance(x, Inputs) or x.is_floating_point() else x.dtype
        self.x: Samples = x.to(first.device, dtype)
        self.y = y.to(first.device, first.dtype if y.is_floating_point() else torch.int64)
        # labels of a sample that count, on average: blocks of samples with more of them weigh more
        self.labels = float((self.y != IGNORED).sum()) / len(self.y) if loss == "cross_entropy" else 1.0
        self.roots: dict[str, tuple[Tensor, Tensor]] = {}
        self.weights = {name: layer.weight.detach().clone() for name, layer in layers.items()}
        self.confined: Callable[[], AbstractContextManager[None]] = nullcontext
        self.confined = confinement(lambda: self.outputs(next(self._chunks())[0]))

    def prepare(self, seed: int) -> list[str]:
        """Compute S^{-1/2} and A^{-1/2} of every layer, and return the names of those that the loss depends on."""
        inputs: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        positions = dict.fromkeys(self.layers, 0)

        def seen(name: str, layer: Any, given: Tensor, out: Tensor) -> None:
            rows = _rows(layer, given.detach()).double()
            inputs[name] = inputs.get(name, 0) + rows.T @ rows
            positions[name] += len(rows)
            if out.requires_grad:
                out.register_hook(lambda slope: back(name, layer, slope))

        def back(name: str, layer: Any, slope: Tensor) -> None:
            flat = slope.movedim(1, -1) if isinstance(layer, CONVOLUTIONS) else slope
            rows = flat.detach().reshape(-1, flat.shape[-1]).double()
            outputs[name] = outputs.get(name, 0) + rows.T @ rows

        hooks = [
            layer.register_forward_hook(lambda own, given, out, name=name: seen(name, own, given[0], out))
            for name, layer in self.layers.items()
        ]
        generator = torch.Generator().manual_seed(seed)
        for x, y in self._chunks():
            with torch.enable_grad():
                out = self.outputs(x)
                validation.expect(out.isfinite().all(), "net", "NaN or infinite outputs on x", "finite ones")
                scores = "floating-point numbers, such as the scores before argmax"
                validation.expect(out.is_floating_point(), "net", f"outputs of dtype {out.dtype}", scores)
                validation.expect(
                    out.requires_grad, "net", "outputs without a gradient", "a forward of PyTorch operations only"
                )
                self._check(out, y)
                with differentiating(self.net):
                    self._drawn(out, y, generator).backward()
        for hook in hooks:
            hook.remove()
        used = [name for name in self.layers if name in outputs and outputs[name].any() and inputs[name].any()]
        for name in used:
            a, s = inputs[name] / positions[name], outputs[name] / len(self.x)
            self.roots[name] = _inverse_root(s), _inverse_root(a)
        return used

    def runs_by(self, name: str) -> bool:
        """Return whether the network runs a layer by a name, under which an adapter is placed, and not by another."""
        holder, _, own = name.rpartition(".")
        parent, probe, calls = self.net.get_submodule(holder), nn.Sequential(self.layers[name]), []
        probe.register_forward_hook(lambda *_: calls.append(name))
        parent._modules[own] = probe
        try:
            with torch.no_grad():
                self.outputs(next(self._chunks())[0])
        except ValueError:  # it reads attributes of the layer, which an adapter passes on
            return True
        finally:
            parent._modules[own] = self.layers[name]
        return bool(calls)

    def started(self, names: list[str], rank: int, seed: int) -> Factors:
        """Return adapters that change nothing: random first factors, and second factors of zeros."""
        draw = torch.Generator().manual_seed(seed)
        found: Factors = {}
        for name in names:
            weight = self.weights[name].flatten(1)
            n_out, n_in = weight.shape
            size = min(rank, n_out, n_in)
            down = torch.randn(size, n_in, generator=draw, dtype=torch.float64) / n_in**0.5
            found[name] = weight.new_zeros(n_out, size), down.to(weight)
        return found

    def trained(self, factors: Factors, steps: int, rate: float, penalty: float, seed: int) -> tuple[Factors, float]:
        """Return adapters after steps of Adam with a cosine schedule, and the loss on all samples."""
        made = {n: tuple(f.detach().clone().requires_grad_() for f in pair) for n, pair in factors.items()}
        own: Factors = {n: (pair[0], pair[1]) for n, pair in made.items()}
        optimizer = torch.optim.Adam([f for pair in own.values() for f in pair], lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        scale = self.value({}).abs()
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        norms = {n: self.weights[n].norm().clamp(min=torch.finfo(self.weights[n].dtype).tiny) for n in own}
        batches = self._batches(seed)
        with torch.enable_grad():
            for _ in range(steps):
                x, y = next(batches)
                optimizer.zero_grad()
                sizes = [(u.square().sum() + v.square().sum()) / norms[n] for n, (u, v) in own.items()]
                cost = self.cost(self.outputs(x, own), y) / scale
                (cost + penalty * torch.stack(sizes).sum()).backward()
                optimizer.step()
                schedule.step()
        own = {n: (u.detach(), v.detach()) for n, (u, v) in own.items()}
        value = float(self.value(own))
        return own, value if math.isfinite(value) else math.inf

    def value(self, factors: Factors) -> Tensor:
        """Return the loss on all samples."""
        with torch.no_grad():
            parts = [
                self.cost(self.outputs(x, factors), y).double() * (len(x) / len(self.x)) for x, y in self._chunks()
            ]
        return torch.stack(parts).sum()

    def move(self, factors: Factors) -> None:
        """Add adapters to the weights of the network, whatever was added before."""
        with torch.no_grad():
            for name, weight in self._merged(factors).items():
                self.layers[name].weight.copy_(weight)

    def _merged(self, factors: Factors) -> dict[str, Tensor]:
        return {n: self.weights[n] + (u @ v).reshape(self.weights[n].shape) for n, (u, v) in factors.items()}

    def _chunks(self) -> Iterator[tuple[Samples, Tensor]]:
        return zip(self.x.split(self.chunk_size), self.y.split(self.chunk_size), strict=True)

    def _batches(self, seed: int) -> Iterator[tuple[Samples, Tensor]]:
        """Iterate without end over shuffled blocks of samples."""
        draw = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(self.x), generator=draw).to(self.y.device)
            for rows in order.split(self.chunk_size):
                yield self.x[rows], self.y[rows]

    def outputs(self, x: Samples, factors: Factors | None = None) -> Tensor:
        """Return the main output of the network, (N, ...), with adapters or with the weights that it has.

        One of shape (N,) is a column, (N, 1), but for a function as loss, which gets what it gets in a training.
        """
        given = x if isinstance(x, Inputs) else Inputs((x,))
        held = {f"{n}.weight" if n else "weight": w for n, w in self._merged(factors or {}).items()}
        try:
            with self.confined():
                returned = torch.func.functional_call(self.net, held, given.positional, given.named, tie_weights=False)
        except Exception as error:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in given.tensors)
            raise ValueError(f"net: {type(self.net).__name__} failed on x of shape {shapes}: {error}") from error
        out = main_output(returned)
        if not isinstance(out, Tensor) or out.ndim <= given.dim or out.shape[given.dim] != len(x):
            raise ValueError(
                f"net: returns {validation.describe(out)}, expected a tensor (N, ...) for {len(x)} samples"
            )
        out = out.movedim(given.dim, 0)
        return out if callable(self.loss) else columns(out)

    def cost(self, out: Tensor, y: Tensor) -> Tensor:
        """Return the loss, over blocks of samples on average that of all samples."""
        if callable(self.loss):
            cost: Tensor = self.loss(out, y)
            return cost
        if self.loss == "cross_entropy":
            total = nn.functional.cross_entropy(out.flatten(0, -2), y.flatten(), ignore_index=IGNORED, reduction="sum")
            return total / (self.labels * len(out))
        return LOSSES[self.loss](out.flatten(1), columns(y).to(out.dtype).flatten(1))

    def _check(self, out: Tensor, y: Tensor) -> None:
        """Refuse targets that do not fit the outputs, and functions that are no loss."""

        def shape_of(some: Tensor) -> tuple[int, ...]:
            return (len(self.x), *some.shape[1:])  # not of the block

        if callable(self.loss):
            cost = self.loss(out, y)
            scalar = isinstance(cost, Tensor) and cost.ndim == 0
            validation.expect(scalar, "loss", validation.describe(cost), "a function that returns a tensor of shape ()")
        elif self.loss == "cross_entropy":
            fits = y.shape == out.shape[:-1] and not y.is_floating_point()
            validation.expect(fits, "y", f"shape {shape_of(y)}", f"class indices of shape {shape_of(out[..., 0])}")
            kept = y[y != IGNORED]
            if out.shape[-1] == 1:
                advice = 'floating-point targets, or -1 and +1 with loss="logistic"'
                validation.expect(not kept.any(), "y", "several classes for a network with one output", advice)
            if len(kept):
                validation.classes(kept, "y", out.shape[-1])
        else:
            fits = columns(y).shape == out.shape
            validation.expect(fits, "y", f"shape {shape_of(y)}", f"that of outputs, {shape_of(out)}")
            signs = self.loss != "logistic" or bool((y.abs() == 1).all())
            validation.expect(signs, "y", "other entries than -1 and +1", "-1 and +1 for the logistic loss")

    def _drawn(self, out: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Return a function of the outputs whose gradient is that of the loss of every sample, for a drawn target."""
        flat = out.flatten(0, -2) if self.loss == "cross_entropy" else columns(out).flatten(1)
        noise = torch.rand(flat.shape, generator=generator, dtype=torch.float64).to(flat.device).clamp(1e-12, 1 - 1e-12)
        if self.loss == "cross_entropy":  # the largest of the logits plus Gumbel noise has the softmax's distribution
            label = (flat.detach().double() - (-noise.log()).log()).argmax(1)
            label = torch.where(y.flatten() == IGNORED, IGNORED, label)
            return nn.functional.cross_entropy(flat, label, reduction="sum") / self.labels**0.5
        if self.loss == "logistic":
            sign = torch.where(noise < flat.detach().double().sigmoid(), 1.0, -1.0).to(flat.dtype)
            return nn.functional.softplus(-sign * flat).sum()
        normal = torch.special.ndtri(noise).to(flat.dtype)
        return 2**0.5 * (flat * normal).sum()


def _rows(layer: Any, given: Tensor) -> Tensor:
    """Return the inputs of a layer, or the patches of a convolution, as rows."""
    if not isinstance(layer, CONVOLUTIONS):
        return given.reshape(-1, given.shape[-1])
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = nn.functional.pad(given, layer._reversed_padding_repeated_twice, mode=mode)
    sizes = [layer.kernel_size, layer.dilation, layer.stride]
    if isinstance(layer, nn.Conv1d):
        padded, sizes = padded.unsqueeze(2), [(1, *size) for size in sizes]
    patches = nn.functional.unfold(padded, sizes[0], dilation=sizes[1], stride=sizes[2])
    return patches.mT.reshape(-1, patches.shape[1])


def _inverse_root(moments: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(moments)
    values = values.clamp(min=0)
    return (vectors * (values + DAMPING * values.mean()).rsqrt()) @ vectors.mT
