"""Removal of redundant neurons and channels, and balancing of their scales."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bnrank.discovery.compression.fits import with_weight
from bnrank.discovery.compression.judging import Judge
from bnrank.discovery.compression.parts import (
    CONVOLUTIONS,
    Counts,
    Parts,
    cheapest,
    neighbors,
    pads_of,
    plain,
    run,
    share,
)
from bnrank.discovery.storage import ACTIVATIONS, POOLING
from bnrank.theory.cost.pruning import prune

PRUNABLE = (nn.Linear, nn.ReLU, nn.LeakyReLU)
RIDGE = 1e-8  # relative to a unit's squared norm, in least squares between units
FLOOR = 1e-14  # relative to the initial squared norm: below it, float64 resolves no difference


@dataclass(frozen=True)
class Ranking:
    """The units (neurons, channels) of one linear part, ordered by importance for the next part.

    Attributes
    ----------
    place, reader : int
        Indices of the part and of the next linear part.
    order : Tensor
        Units, most important first.
    tails : Tensor
        (units + 1,): root mean square change of the output, to first order, when only the first m = 0, 1, ... units are
        kept and the others are expressed as linear functions of them.
    price : float
        Cost of a unit (its incoming and outgoing weights), see :func:`~bnrank.discovery.compression.parts.share`.
    """

    place: int
    reader: int
    order: Tensor
    tails: Tensor
    price: float


def rankings(judge: Judge, parts: tuple[Any, ...], whole: Counts) -> list[Ranking]:
    """Return the ranked units of every linear part that only unit-wise parts separate from the next linear part.

    Forward selection by orthogonal least squares, n steps of O(n^2): each step selects the unit that explains most of
    the remaining output of the reader, in the metric of the output.
    """
    values, metrics = judge.trace(parts), judge.metrics(parts)
    found = []
    for i, j in neighbors(parts):
        rows = unit_rows(parts, i, j, values[i + 1], values[j])
        if rows is None or j not in metrics:
            continue
        weight = by_unit(parts[j], rows.shape[1])  # (out, units, places)
        seen = torch.einsum("po,ouk->upk", metrics[j], weight).flatten(1)
        order, squares = forward_selection(rows - rows.mean(0) if takes_constants(parts[j]) else rows, seen @ seen.T)
        part, reader, units = parts[i], parts[j], len(order)
        own, read = part.weight[0].numel(), reader.weight.numel() / units
        work = own * values[i + 1][0].numel() / units + read * values[j + 1][0].numel() / len(reader.weight)
        price = share((own + read + (part.bias is not None), work, 0), whole)
        found.append(Ranking(i, j, order, (squares / len(rows)).clamp(min=0).sqrt(), price))
    return found


def narrowed(judge: Judge, parts: Parts, chosen: Sequence[Ranking], scale: float) -> tuple[Parts, list[int]]:
    """Return the parts without the units whose cost exceeds the benefit of keeping them, to first order.

    :func:`~bnrank.discovery.compression.parts.cheapest` decides how many are kept. A removed unit is expressed as a
    linear function of those kept, by least squares on the samples, and absorbed into the reader. Parts are processed in
    order. Each fit maps the reader's present input (after the removals so far) to its original input, so that later
    fits correct earlier errors.

    Returns
    -------
    tuple of torch.nn.Module
        The parts, as many as before.
    list of int
        Units left, one number per ranking.
    """
    old = judge.trace(parts)
    new = list(parts)
    kept = []
    value, done = judge.x, 0
    with torch.no_grad():
        for ranking in chosen:
            i, j = ranking.place, ranking.reader
            value, done = run(new[done:i], value), i
            prices = ranking.price * torch.arange(1, len(ranking.tails), dtype=torch.float64)
            count = 1 + cheapest(prices, ranking.tails[1:], scale * judge.scale)
            kept.append(count)
            if count == len(ranking.order):
                continue
            units = ranking.order[:count].sort().values
            target = unit_rows(parts, i, j, old[i + 1], old[j])
            layer: Any = new[i]
            slim = with_weight(layer, layer.weight[units], None if layer.bias is None else layer.bias[units])
            given = slim(value)
            present = unit_rows(new, i, j, given, run(new[i + 1 : j], given))
            assert target is not None
            assert present is not None
            new[i], new[j] = slim, rewritten(new[j], target, present)
    return tuple(new), kept


def rewritten(reader: Any, target: Tensor, present: Tensor) -> Any:
    """Return the reader for inputs ``present``, which predict its original input ``target`` linearly."""
    shift, constant = (target.mean(0), present.mean(0)), takes_constants(reader)
    a, b = (present - shift[1], target - shift[0]) if constant else (present, target)
    gram = a.T @ a
    gram.diagonal().mul_(1 + RIDGE).add_(torch.finfo(gram.dtype).tiny)
    mixing = torch.linalg.solve(gram, a.T @ b)  # (kept, units)
    weight = by_unit(reader, target.shape[1])
    mixed = torch.einsum("ouk,su->osk", weight, mixing)
    bias = reader.bias
    if constant:
        offset = weight.sum(2) @ (shift[0] - shift[1] @ mixing)
        bias = offset if bias is None else bias + offset
    return with_weight(reader, mixed, bias)


def unit_rows(parts: Sequence[nn.Module], i: int, j: int, given: Tensor, read: Tensor) -> Tensor | None:
    """Return the input of part j as rows over samples and positions and columns over the units of part i.

    None where the parts in between mix units, or treat them differently.
    """
    between, linear = parts[i + 1 : j], isinstance(parts[j], nn.Linear)
    flat = [part for part in between if type(part) is nn.Flatten]
    if not all(plain(part, (*ACTIVATIONS, *POOLING, nn.Flatten)) for part in between):
        return None
    if any(part.start_dim != 1 or part.end_dim not in (-1, given.ndim - 1) for part in flat):
        return None
    if isinstance(parts[i], nn.Linear):
        pools = any(type(part) in POOLING for part in between)
        ordered = linear and not pools and not (flat and given.ndim > 2)
        return read.reshape(-1, read.shape[-1]).double() if ordered else None
    if given.ndim != parts[i].weight.ndim or bool(flat) != linear or (linear and read.ndim != 2):
        return None
    return read.reshape(len(read), given.shape[1], -1).movedim(1, -1).reshape(-1, given.shape[1]).double()


def takes_constants(reader: nn.Module) -> bool:
    """Return whether a part maps constant inputs to constant outputs."""
    return not isinstance(reader, CONVOLUTIONS) or reader.padding_mode != "zeros" or not any(pads_of(reader))


def by_unit(reader: Any, units: int) -> Tensor:
    """Return the reader's weight as (out, units, weights of a unit), in float64."""
    return reader.weight.detach().double().reshape(len(reader.weight), units, -1)


def forward_selection(rows: Tensor, needed: Tensor) -> tuple[Tensor, Tensor]:
    """Return units in the order of selection and the remainder of tr(rows needed rows^T) after each, (units + 1,).

    The remainder is computed by ridge regression, which avoids large coefficients of opposite sign.
    """
    gram = rows.T @ rows
    values, vectors = torch.linalg.eigh(needed)
    cross = gram @ (vectors * values.clamp(min=0).sqrt())  # between units and the needed output
    sizes = gram.diagonal().clone()
    left = [float((gram * needed).sum())]
    gram = gram + torch.diag(RIDGE * sizes)
    order: list[int] = []
    free = sizes > 0
    tiny = torch.finfo(gram.dtype).tiny
    while bool(free.any()) and left[-1] > FLOOR * left[0]:
        gains = cross.square().sum(1) / gram.diagonal().clamp(min=tiny)
        s = int(torch.where(free, gains, torch.full_like(gains, -torch.inf)).argmax())
        column, row, pivot = gram[:, s].clone(), cross[s].clone(), float(gram[s, s])
        order.append(s)
        left.append(max(left[-1] - float(gains[s]), 0.0))
        gram -= column[:, None] * (column / pivot)
        cross -= column[:, None] * (row / pivot)
        free[s] = False
    chosen = set(order)
    order += [unit for unit in range(len(gram)) if unit not in chosen]
    left += [0.0] * (len(gram) + 1 - len(left))
    return torch.tensor(order, dtype=torch.long), torch.tensor(left, dtype=torch.float64)


def without_superfluous(parts: Parts, x: Tensor, rtol: float = 1e-9) -> tuple[Parts, int, int]:
    """Return parts without units that no input reaches or that reach no output, and with parallel ones merged.

    The function is unchanged for every input. Chains of Linear with one activation are pruned by
    :func:`bnrank.cost.prune`. For convolutions, a channel with zero weights is constant and is absorbed into the
    reader's bias (where the reader does not pad with zeros, or the constant is 0). Channels whose weights and biases
    are positive multiples of each other are merged and the reader's columns are added, where activations are ReLU or
    leaky ReLU.

    Parameters
    ----------
    parts : tuple of torch.nn.Module
        Parts of a segment.
    x : Tensor
        Its input for some samples; only shapes matter.
    rtol : float
        Two vectors are parallel if, scaled to unit length, their distance is at most this.

    Returns
    -------
    tuple of torch.nn.Module
        As many parts.
    int, int
        Units removed, and units merged into others.
    """
    new, removed, merged = _pruned_runs(list(parts), rtol)
    with torch.no_grad():
        for i, j, between in _homogeneous(new, x):
            if isinstance(new[i], CONVOLUTIONS):
                new[i], new[j], gone, same = _merged_channels(new[i], new[j], between, rtol)
                removed, merged = removed + gone, merged + same
    return tuple(new), removed, merged


def _homogeneous(parts: Sequence[nn.Module], x: Tensor) -> list[tuple[int, int, list[nn.Module]]]:
    """Return neighboring linear parts with positively homogeneous activations in between, and the activations."""
    found = []
    for i, j in neighbors(parts):
        given = run(parts[: i + 1], x[:2])
        between = [part for part in parts[i + 1 : j] if type(part) in ACTIVATIONS]
        homogeneous = all(type(part) in (nn.ReLU, nn.LeakyReLU) for part in between)
        if homogeneous and unit_rows(parts, i, j, given, run(parts[i + 1 : j], given)) is not None:
            found.append((i, j, between))
    return found


def _pruned_runs(parts: list[nn.Module], rtol: float) -> tuple[list[nn.Module], int, int]:
    removed = merged = 0
    for prunable, places in itertools.groupby(range(len(parts)), lambda i: plain(parts[i], PRUNABLE)):
        linear = [i for i in places if isinstance(parts[i], nn.Linear)]
        if not prunable or not linear:
            continue
        try:
            found = prune(nn.Sequential(*parts[linear[0] : linear[-1] + 1]), rtol=rtol)
        except TypeError:  # activations differ, or there are two in a row
            continue
        if any(found.removed) or any(found.merged):
            biases = [*found.network.biases] or itertools.repeat(None)
            for i, weight, bias in zip(linear, found.network.weights, biases, strict=False):
                parts[i] = with_weight(parts[i], weight.detach(), None if bias is None else bias.detach())
            removed += sum(map(len, found.removed))
            merged += sum(len(others) for of in found.merged for _, others in of)
    return parts, removed, merged


def _merged_channels(layer: Any, reader: Any, between: list[nn.Module], rtol: float) -> tuple[Any, Any, int, int]:
    flat = layer.weight.detach().double().flatten(1)
    bias = flat.new_zeros(len(flat)) if layer.bias is None else layer.bias.detach().double()
    weight, constants = by_unit(reader, len(flat)).clone(), run(between, bias)
    unread = weight.abs().amax((0, 2)) == 0
    dead = ~flat.any(1) & ((constants == 0) | takes_constants(reader)) | unread
    offset = (weight.sum(2) * torch.where(dead, constants, 0.0)).sum(1)
    rows = torch.cat([flat, bias[:, None]], 1)
    lengths = rows.norm(dim=1)
    units = rows / torch.where(lengths > 0, lengths, 1.0)[:, None]
    gone = dead.clone()
    same = 0
    for u in range(len(flat)):
        if gone[u]:
            continue
        twins = ((units - units[u]).norm(dim=1) <= rtol) & ~gone & (torch.arange(len(flat), device=flat.device) > u)
        for v in twins.nonzero().flatten().tolist():
            weight[:, u] += weight[:, v] * (lengths[v] / lengths[u])
            gone[v], same = True, same + 1
    if gone.all():
        gone[0] = False
        weight[:, 0] = 0.0 if dead[0] else weight[:, 0]
    keep = ~gone
    if bool(keep.all()):
        return layer, reader, 0, 0
    shifted = offset if reader.bias is None else reader.bias.detach() + offset
    new_bias = None if reader.bias is None and not bool(offset.any()) else shifted
    slim = with_weight(layer, layer.weight.detach()[keep], None if layer.bias is None else bias[keep])
    return slim, with_weight(reader, weight[:, keep], new_bias), int(gone.sum()) - same, same


SWEEPS = 20


def balanced(parts: Parts, x: Tensor) -> Parts:
    """Return parts with neurons and channels rescaled so that incoming and outgoing weights have equal norms (T14).

    Only units followed by positively homogeneous parts are rescaled. For chains of Linear :func:`bnrank.cost.balance`
    finds the limit by Newton's method; these sweeps include convolutions.

    Parameters
    ----------
    parts : tuple of torch.nn.Module
        Parts of a segment.
    x : Tensor
        Its input for some samples; only shapes matter.

    Returns
    -------
    tuple of torch.nn.Module
        The rescaled parts; they compute the same function.

    Examples
    --------
    >>> uneven = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    >>> with torch.no_grad():
    ...     _ = uneven[0].weight.copy_(100 * torch.eye(2)), uneven[2].weight.fill_(0.01)
    >>> [part.weight.tolist() for part in balanced(tuple(uneven), torch.ones(2, 2)) if isinstance(part, nn.Linear)]
    [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0]]]
    """
    new: list[Any] = list(parts)
    with torch.no_grad():
        pairs = _homogeneous(parts, x)
        for _ in range(SWEEPS):
            for i, j, _ in pairs:
                new[i], new[j] = _evened(new[i], new[j])
    return tuple(new)


def _evened(layer: Any, reader: Any) -> tuple[nn.Module, nn.Module]:
    weight, bias = (None if p is None else p.detach().double() for p in (layer.weight, layer.bias))
    assert weight is not None
    columns = by_unit(reader, len(weight))
    squares = weight.flatten(1).square().sum(1) + (0.0 if bias is None else bias.square())
    out = columns.square().sum((0, 2))
    scale = torch.where((squares > 0) & (out > 0), (out / squares.clamp(min=1e-300)) ** 0.25, 1.0)
    scaled = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
    slim = with_weight(layer, scaled, None if bias is None else bias * scale)
    return slim, with_weight(reader, columns / scale[:, None], None if reader.bias is None else reader.bias.detach())
