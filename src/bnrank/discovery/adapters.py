"""Ranks of low-rank adapters: a budget of parameters spent where the gradient of the loss has the largest spectrum."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import devices, validation
from bnrank.networks.functional import check_finite, example, unwrap
from bnrank.tasks.losses import LOSSES

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
DAMPING = 0.1
"""Added to both second moments, in units of their mean eigenvalue."""
SCALES = (2.0, 1.4, 1.0, 0.7, 0.5, 0.25, 0.1)
"""Multiples of a predicted update that are tried."""


class RankPattern(dict[str, int]):
    r"""Ranks of adapters by module, as ``rank_pattern`` of peft's ``LoraConfig`` takes them.

    Keys are regular expressions that match one module each, such as ``^body\.0``. Modules of rank 0 are left out.

    Attributes
    ----------
    ranks : dict
        Rank by plain name of the module, of every layer that could have an adapter, 0 included.
    target_modules : str
        Regular expression of the modules with an adapter, for ``LoraConfig(target_modules=...)``.
    alpha_pattern : dict
        alpha by module, equal to the rank: the factor alpha / rank of every adapter is 1.
    parameters, budget : int
        Number of parameters of the adapters, and how many were allowed.
    gains : dict
        Predicted decrease of the loss at the given weights, by name: s_i^2 / 2 for every unit of rank (numpy arrays).
    skipped : dict
        Why a layer has no adapter, by name.
    """

    def __init__(
        self,
        ranks: dict[str, int],
        gains: dict[str, np.ndarray],
        sizes: dict[str, int],
        budget: int,
        skipped: dict[str, str],
    ) -> None:
        chosen = {name: rank for name, rank in ranks.items() if rank}
        super().__init__({"^" + re.escape(name): rank for name, rank in chosen.items()})
        self.ranks, self.gains, self.skipped, self.budget = ranks, gains, skipped, budget
        self.alpha_pattern = dict(self)
        self.target_modules = "|".join(re.escape(name) for name in chosen)
        self.parameters = sum(rank * sizes[name] for name, rank in chosen.items())


def lora_ranks(
    net: nn.Module,
    x: Any,
    y: Any,
    *,
    budget: int,
    loss: str | Callable[[Tensor, Tensor], Tensor] | None = None,
    rounds: int = 32,
    chunk_size: int = 256,
    seed: int = 0,
) -> RankPattern:
    """Return ranks of low-rank adapters for every linear layer and convolution, within a budget of parameters.

    The update of a layer, (n_out, r) times (r, n_in), has r (n_in + n_out) parameters. Let G = dC/dW be the gradient of
    the loss, A the second moments of the layer's inputs, and S those of the gradients at its outputs for targets drawn
    from the network's own prediction. With the Kronecker-factored curvature of A and S, the best update of rank r of
    one layer decreases the loss by (s_1^2 + ... + s_r^2) / 2, with s_i the singular values of S^{-1/2} G A^{-1/2}. The
    budget is spent in ``rounds``: each spends an equal share on the largest s_i^2 / 2 per parameter, takes these
    updates on a copy of the network, at the best of seven scales, and computes G, A and S again, so that two layers are
    not both paid for the same decrease of the loss.

    Parameters
    ----------
    net : torch.nn.Module
        The pretrained network, which is not changed. It returns one tensor, or an object with ``logits`` or
        ``last_hidden_state``. Whether its parameters are frozen makes no difference.
    x : Tensor or ndarray
        Samples of the new task, (N, ...); integers for networks that embed them.
    y : Tensor or ndarray
        Targets: (N, ...) in the shape of the outputs, -1 and +1 for "logistic"; or class indices from 0, (N,) or
        (N, ...), without positions to be ignored.
    budget : int
        Number of parameters of all adapters. Uniform rank r costs r times the sum of n_in + n_out.
    loss : str or callable, optional
        "mse", "cross_entropy" or "logistic", or a function of outputs and targets that returns the mean over samples.
        Default: "cross_entropy" for integer y, "mse" otherwise.
    rounds : int
        Number of times that the gradient is computed. One is the spectrum at the given weights alone.
    chunk_size : int
        Number of samples per pass.
    seed : int
        Random seed of the drawn outputs.

    Returns
    -------
    RankPattern
        A dictionary for ``peft.LoraConfig(rank_pattern=...)``, with ``target_modules`` and ``alpha_pattern``.

    Raises
    ------
    TypeError, ValueError
        If an argument is unsuitable, no layer can have an adapter, or the budget is below one unit of rank of the
        smallest layer.

    Notes
    -----
    Gradient and curvature: Martens and Grosse 2015, "Optimizing neural networks with Kronecker-factored approximate
    curvature". A convolution without groups is the linear map of its flattened kernel, as in peft; A and S are those of
    its patches and positions. With a function as ``loss``, S is that of the squared error. Skipped, with the reason in
    ``skipped``: convolutions with groups, subclasses of Linear (such as the projection in ``nn.MultiheadAttention``),
    layers whose weights are shared with another module or computed, and layers that the loss does not depend on at the
    given weights.

    Examples
    --------
    >>> import bnrank, torch
    >>> net = bnrank.MLP([3, 8, 8, 2], seed=0)
    >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> pattern = bnrank.lora_ranks(net, x, net(x).detach() + x[:, :2], budget=40)
    >>> pattern.parameters <= 40, all(rank > 0 for rank in pattern.values())
    (True, True)
    """
    validation.kind(net, "net", nn.Module, "a torch.nn.Module")
    check_finite(net)
    budget, chunk_size = validation.integer(budget, "budget"), validation.integer(chunk_size, "chunk_size")
    rounds, seed = validation.integer(rounds, "rounds"), validation.seed(seed)
    samples = example(unwrap(net), x).detach()
    targets = _targets(y, len(samples))
    if loss is None:
        loss = "mse" if targets.is_floating_point() else "cross_entropy"
    if not callable(loss):
        validation.choice(loss, "loss", list(LOSSES))
    own = copy.deepcopy(unwrap(net)).eval()
    layers, skipped = _layers(own)
    validation.expect(layers, "net", f"{type(own).__name__} with {len(skipped)} unsuitable layers", "linear layers")
    found = _Measured(own, layers, loss, samples, targets, chunk_size)
    used = found.prepare(seed)
    skipped |= {name: "the loss does not depend on it at these weights" for name in layers if name not in used}
    validation.expect(
        used, "net", "a loss that depends on none of its layers", "linear layers used in the forward pass"
    )
    sizes = {name: sum(layers[name].weight.flatten(1).shape) for name in used}
    least = min(sizes.values())
    validation.expect(budget >= least, "budget", budget, f"at least {least}, one unit of rank of the smallest layer")
    ranks, gains = _spend(found, sizes, budget, rounds, seed)
    return RankPattern(ranks, gains, sizes, budget, skipped)


def _spend(
    found: _Measured, sizes: dict[str, int], budget: int, rounds: int, seed: int
) -> tuple[dict[str, int], dict[str, np.ndarray]]:
    """Return the ranks, and the gains of the first round."""
    ranks, left = dict.fromkeys(sizes, 0), budget
    first: dict[str, np.ndarray] = {}
    most = {name: min(found.layers[name].weight.flatten(1).shape) for name in sizes}
    for number in range(rounds):
        if number:
            found.prepare((seed + number) % 2**64)
        steps = found.steps()
        first = first or {name: (step[1].square() / 2).cpu().numpy() for name, step in steps.items()}
        share = left - budget * (rounds - 1 - number) // rounds
        units = sorted(
            (-float(s * s) / sizes[name], name, i)
            for name, (_, values, _) in steps.items()
            for i, s in enumerate(values)
        )
        taken, spent = dict.fromkeys(sizes, 0), 0
        for _, name, i in units:
            due = spent < share or number == rounds - 1
            room = spent + sizes[name] <= left and ranks[name] + taken[name] < most[name]
            if due and room and taken[name] == i:
                taken[name] += 1
                spent += sizes[name]
        ranks = {name: rank + taken[name] for name, rank in ranks.items()}
        left -= spent
        if number < rounds - 1 and any(taken.values()):
            found.take({name: (u[:, :k] * s[:k]) @ v[:k] for name, (u, s, v) in steps.items() if (k := taken[name])})
    return ranks, first


def _targets(y: Any, n: int) -> Tensor:
    expected = f"targets of {n} samples"
    if not isinstance(y, Tensor | np.ndarray):
        raise TypeError(f"y: got {validation.describe(y)}, expected {expected}, a tensor or an array")
    targets = validation.dense(y, "y").detach() if isinstance(y, Tensor) else validation.from_array(y, "y")
    validation.expect(not targets.is_complex() and targets.dtype != torch.bool, "y", targets, "real numbers", TypeError)
    validation.expect(targets.ndim > 0 and len(targets) == n, "y", f"shape {tuple(targets.shape)}", expected)
    return validation.finite(targets, "y")


def _layers(net: nn.Module) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the layers that can have an adapter, and why others cannot."""
    users: dict[int, int] = {}
    for module in net.modules():
        for parameter in module.parameters(recurse=False):
            users[id(parameter)] = users.get(id(parameter), 0) + 1
    layers: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    for name, module in net.named_modules():
        if not isinstance(module, (nn.Linear, *CONVOLUTIONS)):
            continue
        weight = module.weight
        if "weight" not in module._parameters:
            skipped[name] = "its weight is computed from other parameters"
        elif isinstance(module, nn.Linear) and type(module) is not nn.Linear:
            skipped[name] = f"a {type(module).__name__}, which may compute something else than a Linear"
        elif users[id(weight)] > 1:
            skipped[name] = "its weight is shared with another module"
        elif getattr(module, "groups", 1) != 1:
            skipped[name] = "a convolution with groups, which low-rank adapters of its kernel do not fit"
        else:
            layers[name] = module
    return layers, skipped


class _Measured:
    """A network, its loss, and the second moments of its layers."""

    def __init__(
        self, net: nn.Module, layers: dict[str, Any], loss: Any, x: Tensor, y: Tensor, chunk_size: int
    ) -> None:
        self.net, self.layers, self.loss, self.chunk_size = net, layers, loss, chunk_size
        for parameter in net.parameters():
            parameter.requires_grad_(False)
        for layer in layers.values():
            layer.weight.requires_grad_(True)
        first = next(iter(layers.values())).weight
        self.x = x.to(first.device, first.dtype if x.is_floating_point() else x.dtype)
        self.y = y.to(first.device, first.dtype if y.is_floating_point() else torch.int64)
        self.roots: dict[str, tuple[Tensor, Tensor]] = {}

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
                out = self._outputs(x)
                validation.expect(out.isfinite().all(), "net", "NaN or infinite outputs on x", "finite ones")
                validation.expect(
                    out.requires_grad, "net", "outputs without a gradient", "a forward of PyTorch operations only"
                )
                self._drawn(out, y, generator).backward()
        for hook in hooks:
            hook.remove()
        used = [name for name in self.layers if name in outputs and outputs[name].any() and inputs[name].any()]
        for name in used:
            a, s = inputs[name] / positions[name], outputs[name] / len(self.x)
            self.roots[name] = _inverse_root(s), _inverse_root(a)
        return used

    def steps(self) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """Return the singular value decomposition of S^{-1/2} G A^{-1/2} of every layer."""
        for layer in self.layers.values():
            layer.weight.grad = None
        for x, y in self._chunks():
            with torch.enable_grad():
                (self._cost(self._outputs(x), y) * (len(x) / len(self.x))).backward()
        found = {}
        for name, (left, right) in self.roots.items():
            gradient = self.layers[name].weight.grad
            moved = left @ gradient.flatten(1).double() @ right
            if not bool(moved.isfinite().all()):
                raise ValueError(f"net: the gradient of the loss at the weights of {name} is not finite")
            found[name] = torch.linalg.svd(moved, full_matrices=False)
        return found

    def take(self, updates: dict[str, Tensor]) -> None:
        """Subtract updates, in the coordinates of the roots, at the scale with the smallest loss."""
        before = {name: self.layers[name].weight.detach().clone() for name in updates}
        steps = {}
        for name, update in updates.items():
            left, right = self.roots[name]
            steps[name] = (left @ update @ right).to(before[name].dtype).reshape(before[name].shape)
        losses = {scale: self._at(before, steps, scale) for scale in (0.0, *SCALES)}
        self._at(before, steps, min(losses, key=lambda scale: losses[scale]))

    def _at(self, before: dict[str, Tensor], steps: dict[str, Tensor], scale: float) -> float:
        with torch.no_grad():
            for name, step in steps.items():
                self.layers[name].weight.copy_(before[name] - scale * step)
            parts = [self._cost(self._outputs(x), y) * (len(x) / len(self.x)) for x, y in self._chunks()]
        total = float(torch.stack(parts).double().sum())
        return total if math.isfinite(total) else math.inf

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.x.split(self.chunk_size), self.y.split(self.chunk_size), strict=True)

    def _outputs(self, x: Tensor) -> Tensor:
        with devices.forked(self.x.device):
            try:
                out = self.net(x)
            except Exception as error:
                raise ValueError(
                    f"net: {type(self.net).__name__} failed on x of shape {tuple(x.shape)}: {error}"
                ) from error
        for name in ("logits", "last_hidden_state"):
            out = getattr(out, name, out) if not isinstance(out, Tensor) else out
        if not isinstance(out, Tensor) or not out.ndim or len(out) != len(x):
            raise ValueError(
                f"net: returns {validation.describe(out)}, expected a tensor (N, ...) for {len(x)} samples"
            )
        return out

    def _cost(self, out: Tensor, y: Tensor) -> Tensor:
        if callable(self.loss):
            cost = self.loss(out, y)
            scalar = isinstance(cost, Tensor) and cost.ndim == 0
            validation.expect(scalar, "loss", validation.describe(cost), "a function that returns a tensor of shape ()")
            return cost
        if self.loss == "cross_entropy":
            fits = out.ndim >= 2 and y.shape == out.shape[:-1] and not y.is_floating_point()
            validation.expect(fits, "y", f"shape {tuple(y.shape)}", f"class indices of shape {tuple(out.shape[:-1])}")
            validation.classes(y.flatten(), "y", out.shape[-1])
            return nn.functional.cross_entropy(out.flatten(0, -2), y.flatten())
        validation.expect(y.shape == out.shape, "y", f"shape {tuple(y.shape)}", f"that of outputs, {tuple(out.shape)}")
        signs = self.loss != "logistic" or bool((y.abs() == 1).all())
        validation.expect(signs, "y", "other entries than -1 and +1", "-1 and +1 for the logistic loss")
        return LOSSES[self.loss](out.flatten(1), y.to(out.dtype).flatten(1))

    def _drawn(self, out: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Return a function of the outputs whose gradient is that of the loss of every sample, for a drawn target."""
        flat = out.flatten(0, -2) if self.loss == "cross_entropy" else out.flatten(1)
        noise = torch.rand(flat.shape, generator=generator, dtype=torch.float64).to(flat.device).clamp(1e-12, 1 - 1e-12)
        if self.loss == "cross_entropy":  # the largest of the logits plus Gumbel noise has the softmax's distribution
            label = (flat.detach().double() - (-noise.log()).log()).argmax(1)
            return nn.functional.cross_entropy(flat, label, reduction="sum") * (len(out) / len(flat)) ** 0.5
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
