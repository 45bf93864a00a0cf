"""Ranks of low-rank adapters: a budget of parameters spent where trained adapters need it most."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.discovery.adapter_training import CONVOLUTIONS, IGNORED, PENALTY, RATES, Problem
from bnrank.discovery.compression.parts import registered
from bnrank.networks.functional import check_finite, example, unwrap
from bnrank.networks.inputs import Samples
from bnrank.networks.reading import listing
from bnrank.networks.replicas import copied
from bnrank.tasks.losses import LOSSES

MULTIPLE = 4  # rank of the adapters that are trained, in uniform ranks
LEAST = 8  # rank of these adapters at least
MARGIN = 0.05  # by which unequal ranks must be better


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
        Predicted rise of the loss when a unit of rank is left out, by name: s_i^2 / 2 (numpy arrays).
    is_uniform : bool
        Whether the ranks are uniform, up to the rest of the budget, since unequal ones were not found to be better.
    skipped : dict
        Why a layer has no adapter, by name.
    """

    ranks: dict[str, int]
    gains: dict[str, np.ndarray]
    skipped: dict[str, str]
    budget: int
    parameters: int
    is_uniform: bool
    alpha_pattern: dict[str, int]
    target_modules: str

    @classmethod
    def of(
        cls,
        ranks: dict[str, int],
        gains: dict[str, np.ndarray],
        sizes: dict[str, int],
        budget: int,
        skipped: dict[str, str],
        is_uniform: bool = False,
    ) -> RankPattern:
        """Return the pattern of ranks by plain name; ``sizes`` are the parameters of a unit of rank.

        Entries alone give a pattern, too, without attributes: with these ``dataclasses.asdict`` copies a dictionary,
        as peft does when it saves an adapter.
        """
        chosen = {name: rank for name, rank in ranks.items() if rank}
        self = cls({"^" + re.escape(name): rank for name, rank in chosen.items()})
        self.ranks, self.gains, self.skipped, self.budget = ranks, gains, skipped, budget
        self.is_uniform = is_uniform
        self.alpha_pattern = dict(self)
        self.target_modules = "|".join(re.escape(name) for name in chosen)
        self.parameters = sum(rank * sizes[name] for name, rank in chosen.items())
        return self


def lora_ranks(
    net: nn.Module,
    x: Any,
    y: Any,
    *,
    budget: int,
    loss: str | Callable[[Tensor, Tensor], Tensor] | None = None,
    steps: int = 200,
    chunk_size: int = 256,
    seed: int = 0,
) -> RankPattern:
    """Return ranks of low-rank adapters for every linear layer and convolution, within a budget of parameters.

    The update D of a layer, (n_out, r) times (r, n_in), has r (n_in + n_out) parameters.

    1. Adapters of four times the uniform rank, at least 8, are trained on a copy of the network, with a penalty on the
       squared norms of both factors, which favors low ranks.
    2. Let A be the second moments of a layer's inputs, and S those of the gradients at its outputs for targets drawn
       from the network's own prediction. In the Kronecker-factored curvature of A and S, leaving out the i-th singular
       direction of D raises the loss by s_i^2 / 2, with s_i the singular values of S^{1/2} D A^{1/2}.
    3. The budget is spent on the largest s_i^2 / 2 per parameter.
    4. D is cut to these ranks, and to the uniform rank, and both are trained further. Unless the loss on x of the
       former is at least 5 percent smaller, the uniform rank is returned.

    Parameters
    ----------
    net : torch.nn.Module
        The pretrained network, which is not changed. It returns one tensor, or an object with ``logits`` or
        ``last_hidden_state``. Whether its parameters are frozen makes no difference.
    x : Tensor or ndarray, tuple or mapping of them
        Samples of the new task, (N, ...); integers for networks that embed them. A mapping is passed as ``net(**x)``,
        a tuple as ``net(*x)``.
    y : Tensor or ndarray
        Targets: (N, ...) in the shape of the outputs, (N,) for (N, 1), too; -1 and +1 for "logistic"; or class indices
        from 0, (N,) or (N, T) for outputs (N, C) or (N, T, C), whose last dimension is that of the classes; -100 for
        positions to be ignored.
    budget : int
        Number of parameters of all adapters. Uniform rank r costs r times the sum of n_in + n_out.
    loss : str or callable, optional
        "mse", "cross_entropy" or "logistic", or a function of outputs and targets that returns the mean over samples.
        Default: "cross_entropy" for integer y, "mse" otherwise.
    steps : int
        Steps of Adam in 1. As many again are spent on choosing the learning rate and on the comparison in 4.
    chunk_size : int
        Number of samples per pass and step.
    seed : int
        Random seed of the first factors, the batches and the drawn outputs.

    Returns
    -------
    RankPattern
        A dictionary for ``peft.LoraConfig(rank_pattern=...)``, with ``target_modules`` and ``alpha_pattern``.

    Raises
    ------
    TypeError, ValueError
        If an argument is unsuitable, ``net`` is itself a layer, no layer can have an adapter, or the budget is below
        one unit of rank of the smallest layer.

    Notes
    -----
    Gradient and curvature: Martens and Grosse 2015, "Optimizing neural networks with Kronecker-factored approximate
    curvature". A convolution without groups is the linear map of its flattened kernel, as in peft; A and S are those of
    its patches and positions. With a function as ``loss``, S is that of the squared error. Skipped, with the reason in
    ``skipped``: convolutions with groups, subclasses of Linear (such as the projection in
    ``nn.MultiheadAttention``), other modules with matrices (embeddings, recurrent layers, transposed convolutions),
    layers whose weights are shared with another module or computed, layers that run by another name than their first,
    under which peft places an adapter, and layers that the loss does not depend on at the given weights.

    Examples
    --------
    >>> import bnrank, torch
    >>> net = bnrank.MLP([3, 8, 8, 2], seed=0)
    >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> pattern = bnrank.lora_ranks(net, x, net(x).detach() + x[:, :2], budget=40)
    >>> pattern.parameters <= 40, all(rank > 0 for rank in pattern.values())
    (True, True)
    """
    check_finite(net)
    budget, chunk_size = validation.integer(budget, "budget"), validation.integer(chunk_size, "chunk_size")
    steps, seed = validation.integer(steps, "steps"), validation.seed(seed)
    samples = example(unwrap(net), x, inputs=True).detach()
    targets = _targets(y, len(samples))
    if loss is None:
        loss = "mse" if targets.is_floating_point() else "cross_entropy"
    if not callable(loss):
        validation.choice(loss, "loss", list(LOSSES))
    if loss == "cross_entropy":
        validation.expect(
            (targets != IGNORED).any(), "y", f"{IGNORED}, to be ignored, everywhere", "some class indices"
        )
    with torch.inference_mode(False):  # tensors that were made in this mode take no part in gradients: copied
        own = copied(unwrap(net)).eval()
        return _chosen(own, samples.clone(), targets.clone(), loss, budget, steps, chunk_size, seed)


def _chosen(
    own: nn.Module, samples: Samples, targets: Tensor, loss: Any, budget: int, steps: int, chunk_size: int, seed: int
) -> RankPattern:
    """Return the ranks of adapters of a network, which is changed."""
    layers, skipped = _layers(own)
    validation.expect(layers, "net", _without_layers(own, skipped), "layers that can have an adapter")
    inside = "a module with the layer inside, such as nn.Sequential(net): adapters are placed in the parent of a layer"
    validation.expect("" not in layers, "net", f"a {type(own).__name__} alone", inside)
    found = Problem(own, layers, loss, samples, targets, chunk_size)
    used = found.prepare(seed)
    skipped |= {name: "the loss does not depend on it at these weights" for name in layers if name not in used}
    places = registered(own)
    by_others = [name for name in used if len(places[layers[name]]) > 1 and not found.runs_by(name)]
    skipped |= dict.fromkeys(by_others, "it runs by another of its names, and an adapter is placed under the first")
    used = [name for name in used if name not in by_others]
    validation.expect(
        used, "net", "a loss that depends on none of its layers", "linear layers used in the forward pass"
    )
    sizes = {name: sum(layers[name].weight.flatten(1).shape) for name in used}
    least = min(sizes.values())
    validation.expect(budget >= least, "budget", budget, f"at least {least}, one unit of rank of the smallest layer")
    ranks, gains, is_uniform = _proposed(found, sizes, budget, steps, seed)
    return RankPattern.of(ranks, gains, sizes, budget, skipped, is_uniform)


def _proposed(
    found: Problem, sizes: dict[str, int], budget: int, steps: int, seed: int
) -> tuple[dict[str, int], dict[str, np.ndarray], bool]:
    """Return the ranks, the gains of all units of rank that were compared, and whether the ranks are uniform."""
    names, uniform = list(sizes), budget // sum(sizes.values())
    most = {name: min(found.layers[name].weight.flatten(1).shape) for name in names}
    start = found.started(names, max(LEAST, MULTIPLE * uniform), seed)
    tried = {rate: found.trained(start, max(1, steps // 8), rate, PENALTY, seed)[1] for rate in RATES}
    rate = min(tried, key=lambda rate: tried[rate])
    factors, value = found.trained(start, steps, rate, PENALTY, seed)
    if not math.isfinite(value):
        half = any(f.dtype == torch.float16 for pair in factors.values() for f in pair)
        advice = "; convert net to float32 or bfloat16, whose range is larger" if half else ""
        raise ValueError(f"net: training adapters gives a loss that is not finite, expected a finite one{advice}")
    found.move(factors)
    found.prepare((seed + 1) % 2**64)
    cut: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    for name, (up, down) in factors.items():
        left, right = (torch.linalg.inv(root) for root in found.roots[name])
        cut[name] = torch.linalg.svd(left @ up.double() @ down.double() @ right, full_matrices=False)
    gains = {name: (s[: start[name][0].shape[1]].square() / 2).cpu().numpy() for name, (_, s, _) in cut.items()}
    own = _spend(gains, sizes, dict.fromkeys(names, 0), budget, most)
    if not uniform:
        return own, gains, False
    same = {name: min(uniform, most[name]) for name in names}
    trials = []
    for ranks in (own, same):
        parts = {name: _truncated(*cut[name], *found.roots[name], ranks[name], factors[name][0]) for name in names}
        trials.append(found.trained(parts, max(1, steps // 4), rate, 0.0, seed)[1])
    if trials[0] < trials[1] - MARGIN * abs(trials[1]) or own == same:
        return own, gains, own == same
    return _spend(gains, sizes, same, budget, most), gains, True


def _truncated(
    u: Tensor, s: Tensor, v: Tensor, left: Tensor, right: Tensor, rank: int, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the factors of an update that is cut to a rank, out of the coordinates of the curvature."""
    root = s[:rank].sqrt()
    return (left @ (u[:, :rank] * root)).to(like), ((root[:, None] * v[:rank]) @ right).to(like)


def _spend(
    gains: dict[str, np.ndarray], sizes: dict[str, int], ranks: dict[str, int], budget: int, most: dict[str, int]
) -> dict[str, int]:
    """Return ranks, raised from given ones by the units with the largest gains per parameter."""
    ranks = dict(ranks)
    left = budget - sum(rank * sizes[name] for name, rank in ranks.items())
    units = sorted((-float(gain) / sizes[name], name, i) for name, row in gains.items() for i, gain in enumerate(row))
    for _, name, i in units:
        if ranks[name] == i < most[name] and sizes[name] <= left:
            ranks[name] += 1
            left -= sizes[name]
    return ranks


def _targets(y: Any, n: int) -> Tensor:
    expected = f"targets of {n} samples"
    if not isinstance(y, Tensor | np.ndarray):
        raise TypeError(f"y: got {validation.describe(y)}, expected {expected}, a tensor or an array")
    targets = validation.dense(y, "y").detach() if isinstance(y, Tensor) else validation.from_array(y, "y")
    validation.expect(not targets.is_complex() and targets.dtype != torch.bool, "y", targets, "real numbers", TypeError)
    validation.expect(targets.ndim > 0 and len(targets) == n, "y", f"shape {tuple(targets.shape)}", expected)
    return validation.finite(targets, "y")


def _without_layers(net: nn.Module, skipped: dict[str, str]) -> str:
    """Return in words that a network has no layer for an adapter, and why."""
    kind = type(net).__name__
    if not skipped:
        return f"{kind} without linear or convolutional layers"
    name, why = next(iter(skipped.items()))
    one, more = "one layer, which takes no", f"{len(skipped)} layers, none of which takes an"
    return f"{kind} with {one if len(skipped) == 1 else more} adapter ({name or 'the module'}: {why})"


def _layers(net: nn.Module) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the layers that can have an adapter, and why others cannot."""
    users: dict[int, int] = {}
    for module in net.modules():
        for parameter in module.parameters(recurse=False):
            users[id(parameter)] = users.get(id(parameter), 0) + 1
    layers: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    holders: set[nn.Module | None] = set()
    if any(True for _ in net.parameters()):
        with listing(net, "net") as held:
            holders = {matrix.stored.module for matrix in held.matrices}
    for name, module in net.named_modules():
        if not isinstance(module, (nn.Linear, *CONVOLUTIONS)):
            if module in holders or isinstance(module, nn.Bilinear):
                reason = "which is neither a Linear nor a convolution in one or two dimensions"
                skipped[name] = f"{type(module).__name__}, {reason}"
            continue
        weight = module.weight
        if "weight" not in module._parameters:
            skipped[name] = "its weight is computed from other parameters"
        elif isinstance(module, nn.Linear) and type(module) is not nn.Linear:
            skipped[name] = f"{type(module).__name__}, which may compute something else than a Linear"
        elif users[id(weight)] > 1:
            skipped[name] = "its weight is shared with another module"
        elif getattr(module, "groups", 1) != 1:
            skipped[name] = "a convolution with groups, which low-rank adapters of its kernel do not fit"
        else:
            layers[name] = module
    return layers, skipped
