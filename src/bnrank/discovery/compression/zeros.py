"""Entries of the layers of a module set to zero, and the others fitted to make up for it."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from bnrank.discovery.compression import budget
from bnrank.discovery.compression.fits import with_weight
from bnrank.discovery.compression.judging import Judge, affordable_whole, check_gradient
from bnrank.discovery.compression.lowrank import places, swapped
from bnrank.discovery.compression.parts import Parts, channel_rows, first_input
from bnrank.discovery.compression.stages import Step
from bnrank.discovery.compression.wholes import put, split_up
from bnrank.networks import Skipped
from bnrank.networks.gated import FactoredRecurrent
from bnrank.networks.replicas import in_precision

DRAWS = 12  # random directions of the output per sample, where there are more outputs
MAX_VALUES = 2**22  # of the rows of inputs of one layer in one block of samples
MAX_INPUTS = 8192  # of a unit: their second moments take minutes and gigabytes
WIDE = 2048  # inputs of a unit, above which zeros are chosen and fitted in float32
ROUNDING = 8  # units of rounding of the largest eigenvalue, at least which the others are
DAMPING = 1e-3  # of the diagonals, relative to their mean
ROUNDS, GROWTH, PENALTY = 60, 1.12, 0.004  # of the alternation: steps, growth of the penalty in each, the first
HALF = 0.5  # of the rounds in which the number of zeros increases
CYCLES, PRECISION = 60, 1e-16  # of conjugate gradients
TRIALS = 8  # fractions of zeros that are measured
FIRST = 0.2  # the first of them
POWER = 1.5  # change grows about like this power of the fraction of zeros
NEAR = 0.97  # of the tolerance: a change above needs no further trial


@dataclass(frozen=True)
class Curvature:
    """The change of the output to second order, of one layer: tr(G D A D^T), D the change of its weight and bias.

    Rows and columns are scaled by the geometric mean of the change when one of them is set to zero alone, and when
    all others make up for it. In float32 where units have over 2,048 inputs: changes are measured in float64.

    Attributes
    ----------
    weight : Tensor
        (units, entries), the scaled weight, the bias as last column if there is one.
    out, into : Tensor
        The second moments G of gradients in the layer's output and A of its inputs, scaled accordingly.
    rows, columns : Tensor
        The scales, by which the weight was multiplied.
    spectra : tuple of Tensor
        Eigenvalues and eigenvectors of ``out`` and of ``into``.
    """

    weight: Tensor
    out: Tensor
    into: Tensor
    rows: Tensor
    columns: Tensor
    spectra: tuple[Tensor, Tensor, Tensor, Tensor]

    @cached_property
    def rotated(self) -> Tensor:
        """The weight in the bases of eigenvectors, times the products of eigenvalues."""
        a, u, b, v = self.spectra
        return (u.T @ self.weight @ v) * a[:, None] * b

    def nearest(self, target: Tensor, penalty: float) -> Tensor:
        """Return the minimizer of the change plus ``penalty`` times the squared distance to a target."""
        a, u, b, v = self.spectra
        return u @ ((self.rotated + penalty * (u.T @ target @ v)) / (a[:, None] * b + penalty)) @ v.T

    def fitted(self, start: Tensor) -> Tensor:
        """Return the weight of least change that is zero wherever the start is: conjugate gradients."""
        kept = start != 0
        found = start
        left = (self.out @ (self.weight - start) @ self.into) * kept
        step, size = left.clone(), float(left.square().sum())
        least = PRECISION * float(((self.out @ self.weight @ self.into) * kept).square().sum())
        for _ in range(CYCLES):
            if size <= least:
                break
            image = (self.out @ step @ self.into) * kept
            curvature = float((step * image).sum())
            if curvature <= 0:  # rounding
                break
            length = size / curvature
            found, left = found + length * step, left - length * image
            size, before = float(left.square().sum()), size
            step = left + size / before * step
        return found


def curvatures(judge: Judge, net: nn.Module, names: Sequence[str], chunk_size: int) -> dict[str, Curvature]:
    """Return the curvatures of layers that change the output, on the samples of the fits.

    G is the mean over samples of J^T J, J the derivative of the output by the values of the layer, summed over its
    positions. A is the mean of outer products of inputs, each weighted by the squared gradient at its position.
    """
    grams: dict[str, list[Tensor]] = {}
    generator = torch.Generator().manual_seed(0)
    for given in judge.x.detach().split(chunk_size):
        out, inputs, outputs = _observed(judge, net, names, given)
        weights: dict[str, Tensor] = {}
        for gradients in _gradients(out, outputs, generator):
            for name, some in gradients.items():
                own = channel_rows(net.get_submodule(name), some)
                grams.setdefault(name, [own.new_zeros(())] * 3)
                grams[name][0] = grams[name][0] + own.T @ own / len(judge.x)
                weights[name] = weights.get(name, own.new_zeros(())) + own.square().sum(1)
        for name, weight in weights.items():
            layer: Any = net.get_submodule(name)
            rows = torch.cat([_patches(layer, one) for one in inputs[name]])
            limit = max(1, MAX_VALUES // rows.shape[1])
            if len(rows) > limit:
                chosen = torch.randperm(len(rows), generator=generator)[:limit]
                rows, weight = rows[chosen], weight[chosen]
            if layer.bias is not None:
                rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
            grams[name][1] = torch.addmm(grams[name][1], (rows * weight[:, None]).T, rows)
            grams[name][2] = grams[name][2] + weight.sum()
    found = {}
    for name in list(grams):
        out, into, total = grams.pop(name)
        into = into.div_(total)
        if total > 0 and all(torch.finfo(out.dtype).tiny < gram.trace() < math.inf for gram in (out, into)):
            found[name] = _curvature(net.get_submodule(name), out, into)  # else the layer has no use
    return found


def _curvature(layer: Any, out: Tensor, into: Tensor) -> Curvature:
    """Return the curvature from second moments, which are modified."""
    weight = layer.weight.detach().flatten(1)
    if layer.bias is not None:
        weight = torch.cat([weight, layer.bias.detach()[:, None]], 1)
    dtype = torch.float32 if len(into) > WIDE else torch.float64
    scales, scaled = [], []
    for gram in (out, into):
        gram.diagonal().add_(DAMPING * gram.diagonal().mean())
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram)).diagonal()
        scales.append((gram.diagonal() / inverse) ** 0.25)
        scaled.append(gram.div_(scales[-1][:, None]).div_(scales[-1]).to(dtype))
    spectra = (*_spectrum(scaled[0]), *_spectrum(scaled[1]))
    weight = (weight * scales[0][:, None] * scales[1]).to(dtype)
    return Curvature(weight, scaled[0], scaled[1], scales[0], scales[1], spectra)


def _spectrum(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, not below rounding of the largest, and eigenvectors."""
    values, vectors = torch.linalg.eigh(gram)
    return values.clamp(min=ROUNDING * torch.finfo(gram.dtype).eps * values[-1]), vectors


def _patches(layer: Any, value: Tensor) -> Tensor:
    """Return what each output of a layer reads as rows, (rows, entries of a unit's weight)."""
    if isinstance(layer, nn.Linear):
        return value.reshape(-1, value.shape[-1])
    d = value.ndim - 2
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    value = F.pad(value, layer._reversed_padding_repeated_twice, mode=mode)
    for axis, kernel, stride, dilation in zip(
        range(2, d + 2), layer.kernel_size, layer.stride, layer.dilation, strict=True
    ):
        value = value.unfold(axis, dilation * (kernel - 1) + 1, stride)[..., ::dilation]
    return value.movedim(1, d + 1).flatten(d + 1).flatten(0, d)


def _observed(
    judge: Judge, net: nn.Module, names: Sequence[str], x: Tensor
) -> tuple[Tensor, dict[str, list[Tensor]], dict[str, list[Tensor]]]:
    """Return the output of the module, and inputs and outputs of its layers in all their runs."""
    inputs: dict[str, list[Tensor]] = {}
    outputs: dict[str, list[Tensor]] = {}

    def keep(name: str, given: Tensor, out: Tensor) -> Tensor:
        inputs.setdefault(name, []).append(given.detach().clone())
        outputs.setdefault(name, []).append(out)
        return out.clone()  # the next part may modify it in place

    with ExitStack() as stack, torch.enable_grad():
        for name in names:
            hook = net.get_submodule(name).register_forward_hook(
                lambda _, given, by_name, out, name=name: keep(name, first_input(given, by_name), out), with_kwargs=True
            )
            stack.callback(hook.remove)
        out = judge.rest(net(x.clone())).flatten(1)
    check_gradient(out)
    return out, inputs, outputs


def _gradients(
    out: Tensor, outputs: dict[str, list[Tensor]], generator: torch.Generator
) -> Iterator[dict[str, Tensor]]:
    """Yield the gradients in the layers of each output, or of random combinations, all runs of a layer together."""
    n = out.shape[1]
    draws = min(n, DRAWS)
    flat = [value for values in outputs.values() for value in values if value.requires_grad]
    if not flat:  # all layers run under torch.no_grad()
        return
    for draw in range(draws):
        if n <= DRAWS:
            direction = torch.zeros_like(out)
            direction[:, draw] = 1
        else:
            signs = torch.randint(0, 2, out.shape, generator=generator).to(out)
            direction = (2 * signs - 1) / math.sqrt(draws)
        found = iter(torch.autograd.grad(out, flat, direction, retain_graph=draw < draws - 1, allow_unused=True))
        by_name = {name: [next(found) if v.requires_grad else None for v in values] for name, values in outputs.items()}
        yield {
            name: torch.cat([torch.zeros_like(v) if g is None else g for g, v in zip(some, outputs[name], strict=True)])
            for name, some in by_name.items()
        }


def thinnest(found: dict[str, Curvature], count: int) -> dict[str, Tensor]:
    """Return scaled weights in which ``count`` more entries are zero, of all layers together, and the others fitted.

    Alternating directions (Boyd et al., 2011): the weights of least change near a sparse target, and the target, their
    largest entries. The penalty of the distance grows, and so does the number of zeros in the first half of the rounds.
    Entries are compared by their effect on the output.
    """
    target = {name: one.weight for name, one in found.items()}
    gap = {name: torch.zeros_like(one.weight) for name, one in found.items()}
    free = {name: one.weight != 0 for name, one in found.items()}
    penalty = PENALTY
    for step in range(1, ROUNDS + 1):
        moved = {name: one.nearest(target[name] - gap[name], penalty) + gap[name] for name, one in found.items()}
        number = min(count, round(count * step / (HALF * ROUNDS)))
        sizes = torch.cat([moved[name].abs()[free[name]] for name in found])
        least = sizes.kthvalue(number).values if number else sizes.new_tensor(-1.0)
        for name, value in moved.items():
            target[name] = value * ((value.abs() > least) & free[name])
            gap[name] = value - target[name]
        penalty *= GROWTH
    return target


def thinned(
    judge: Judge, net: nn.Module, names: Sequence[str], tol: float, chunk_size: int
) -> tuple[dict[str, nn.Module], float, int]:
    """Return layers with as many zeros as the tolerance allows, the change, and the number of entries set to zero.

    Parameters
    ----------
    judge : Judge
        Measures changes.
    net : torch.nn.Module
        In float64 and eval mode, with parameters that require gradients.
    names : sequence of str
        The layers, see :func:`~bnrank.discovery.compression.lowrank.places`.
    tol : float
        Largest change of the output.
    chunk_size : int
        Samples per block.
    """
    found = curvatures(judge, net, names, chunk_size)
    entries = sum(int((one.weight != 0).sum()) for one in found.values())
    best: tuple[dict[str, nn.Module], float, int] = {}, 0.0, 0
    share, below, above = FIRST, 0.0, 1.0
    for _ in range(TRIALS if entries else 0):
        if budget.current().over:
            break
        count = round(share * entries)
        budget.current().trial(f"{count:,} zeros for a change of {100 * tol:.2g} percent")
        target = thinnest(found, count)
        layers = _with_zeros(net, found, target)
        with swapped(net, {name: (layer,) for name, layer in layers.items()}):
            change = judge((net,))
        if change <= tol:
            left = sum(int((own != 0).sum()) for own in target.values())  # fewer than asked for where sizes are equal
            best, below = (layers, change, entries - left), share
            if change > NEAR * tol:
                break
        else:
            above = share
        guess = share * (tol / max(change, 1e-3 * tol)) ** (1 / POWER) * (0.99 if change > tol else 1.0)
        share = guess if below < guess < above else (below + above) / 2
    return best


def _with_zeros(net: nn.Module, found: dict[str, Curvature], target: dict[str, Tensor]) -> dict[str, nn.Module]:
    layers = {}
    for name, one in found.items():
        layer: Any = net.get_submodule(name)
        weight = one.fitted(target[name]).to(one.rows) / one.rows[:, None] / one.columns
        bias = None if layer.bias is None else weight[:, -1]
        layers[name] = with_weight(layer, weight if bias is None else weight[:, :-1], bias)
    return layers


@dataclass(frozen=True)
class Thin:
    """A module with zeros: parts split for it, parameters and buffers, what was done, and layers that have none."""

    new: dict[str, Parts]
    values: dict[str, Tensor]
    step: Step
    skipped: tuple[Skipped, ...] = ()


def with_zeros(judge: Judge, net: nn.Module, tol: float) -> Thin | None:
    """Return a module with entries of its layers set to zero, attention and recurrent modules split; None without any.

    Parameters
    ----------
    judge : Judge
        Of the whole module.
    net : torch.nn.Module
        In any precision; modified.
    tol : float
        Largest change of the output.
    """
    net = in_precision(net, torch.float64).eval().requires_grad_(True)
    x = judge.x[:2]
    with torch.no_grad():
        split = split_up(net, x)
    for part in net.modules():
        if isinstance(part, FactoredRecurrent):
            part.unrolled = True
    names, _ = places(net, x)
    skipped = tuple(_too_wide(name, net.get_submodule(name)) for name in names if _inputs(net, name) > MAX_INPUTS)
    names = [name for name in names if _inputs(net, name) <= MAX_INPUTS]
    _, chunk_size = affordable_whole(net, x, len(judge.x))
    alone = names == [""]  # the module is a layer itself
    layers, change, count = thinned(
        judge, nn.Sequential(net) if alone else net, ["0"] if alone else names, tol, chunk_size
    )
    if not count:
        return None
    layers = {"": layers["0"]} if alone else layers
    for name, layer in layers.items():
        net = put(net, name, layer)
    for part in net.modules():
        if isinstance(part, FactoredRecurrent):
            part.unrolled = False
    for name in split:
        cast(Any, net.get_submodule(name)).refreshed()
    new: dict[str, Parts] = {name: (net.get_submodule(name),) for name in split}
    values = {name: value.detach().clone() for name, value in net.state_dict().items() if isinstance(value, Tensor)}
    return Thin(new, values, Step("zero", "", f"{count:,} entries of {len(layers)} layers", change), skipped)


def _inputs(net: nn.Module, name: str) -> int:
    layer: Any = net.get_submodule(name)
    return int(layer.weight[0].numel())


def _too_wide(name: str, layer: Any) -> Skipped:
    inputs = layer.weight[0].numel()
    why = f"no entry was set to zero: its units have {inputs:,} inputs, the limit is {MAX_INPUTS:,}"
    return Skipped.part(name, layer, why)
