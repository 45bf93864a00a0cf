"""Parts of a module that run in sequence: reading, running, cost, and Lipschitz constants."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from bnrank.discovery.gated import FactoredRecurrent
from bnrank.measures.convolution import conv_singular_values
from bnrank.networks import Skipped, reasons
from bnrank.networks.chain import is_sequential, parts_of
from bnrank.networks.functional import hooked, is_plain_mlp
from bnrank.networks.reading import Reading, read
from bnrank.networks.reading.recording import base_of
from bnrank.networks.reading.stored import derived
from bnrank.networks.replicas import copied, sandbox

Parts = tuple[nn.Module, ...]
Counts = tuple[int, int, int]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LINEAR = (nn.Linear, *CONVOLUTIONS)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_NON_EXPANSIVE = (nn.ReLU, nn.ReLU6, nn.Tanh, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Flatten, nn.Unflatten)
_PADS = (nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d)
_SLOPES = {
    **dict.fromkeys((*_NON_EXPANSIVE, *_PADS), 1.0),
    nn.Sigmoid: 0.25,
    nn.GELU: 1.13,
    nn.SiLU: 1.1,
}  # largest slopes


@dataclass(frozen=True)
class Segment:
    """Parts of a module that run one after another, so that they can be replaced together.

    Attributes
    ----------
    name : str
        The submodule's name; "" for the whole module.
    parts : tuple of torch.nn.Module
        In order: layers, activations and anything else. Dropout and identities are left out.
    names : tuple of str
        The name of each part.
    folded : int
        Number of batch normalizations that were folded into the layers before them; 0 as read.
    """

    name: str
    parts: tuple[nn.Module, ...]
    names: tuple[str, ...] = ()
    folded: int = 0


def is_linear(part: Any) -> bool:
    """Return whether a part is a Linear or an ordinary convolution (one group), without hooks."""
    return plain(part, LINEAR) and getattr(part, "groups", 1) == 1


def plain(part: nn.Module, kinds: Sequence[type[nn.Module]]) -> bool:
    """Return whether a part is of one of some classes, not of a subclass, and without hooks."""
    return type(part) in kinds and not hooked(part)


def reach_of(part: Any) -> list[int]:
    """Return the extent of a convolution's kernel less 1, for each axis."""
    return [d * (k - 1) for d, k in zip(part.dilation, part.kernel_size, strict=True)]


def pads_of(part: Any) -> list[int]:
    """Return the padding of a convolution, both ends together, for each axis."""
    if part.padding == "same":
        return reach_of(part)
    return [0] * len(part.kernel_size) if part.padding == "valid" else [2 * p for p in part.padding]


def run(parts: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Return the output of the parts for x."""
    if parts and not is_linear(parts[0]):
        x = x.clone()  # parts may modify it in place
    for part in parts:
        x = part(x)
    return x


def flow(parts: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
    """Return x and the output of each part, one tensor more than there are parts."""
    return list(itertools.accumulate(parts, lambda value, part: run([part], value), initial=x))


def channel_rows(part: nn.Module, value: Tensor) -> Tensor:
    """Return the output of a linear part in float64, a row per sample and position: (rows, neurons or channels)."""
    value = value if isinstance(part, nn.Linear) else value.movedim(1, -1)
    return value.reshape(-1, value.shape[-1]).double()


def segments(net: nn.Module, x: Tensor) -> tuple[list[Segment], list[Skipped]]:
    """Return the segments of a module that can be compressed, and every other submodule that owns parameters.

    A ``nn.Sequential`` (nested ones as one) or an MLP is a segment; any other Linear or convolution is a segment by
    itself. Parts of a segment that cannot be compressed are also listed.

    Parameters
    ----------
    net : torch.nn.Module
        In eval mode.
    x : Tensor
        At least two samples; the module is run on them.

    Returns
    -------
    list of Segment, list of Skipped
        In order of registration. Parts are copies in eval mode, with batch normalization folded into the layer before
        it.

    Examples
    --------
    >>> import torch
    >>> block = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    >>> found, _ = segments(block.double().eval(), torch.ones(2, 3, dtype=torch.float64))
    >>> [type(part).__name__ for part in found[0].parts]
    ['Linear', 'ReLU', 'Linear']
    """
    reading = read(net, x)
    linear = [segment for segment in _read_segments(net, reading) if any(map(is_linear, segment.parts))]
    found = [_folded(segment) for segment in linear]
    left = [
        _skipped(name, part)
        for segment in found
        for name, part in zip(segment.names, segment.parts, strict=True)
        if not is_linear(part) and any(True for _ in part.parameters())
    ]
    inside = tuple(f"{name}." for segment in linear for name in segment.names)
    whole = {layer.matrix.stored.owner: layer.module for layer in reading.layers}
    others = [*reading.skipped, *(_skipped(name, module) for name, module in whole.items())]
    return found, left + [other for other in others if not f"{other.name}.".startswith(inside)]


def _read_segments(net: nn.Module, reading: Reading) -> Iterator[Segment]:
    """Iterate over the segments of a module that share no parameter or layer with other places and run exactly once."""
    uses = Counter(id(p) for part in net.modules() for p in part._parameters.values() if p is not None)
    whole = [layer for layer in reading.layers if base_of(layer.module) is not None and not layer.samples_dim]
    single = {layer.module for layer in whole if not layer.is_transposed}
    observed = {layer.module for layer in reading.layers}
    first, places = {part: name for name, part in net.named_modules()}, registered(net)
    for sub in dict.fromkeys(sub for _, sub in outermost(net, single)):
        name, within = first[sub], set(sub.modules())
        names, parts = zip(*parts_of(sub, name), strict=True)
        with_layers = [part for part in within - {sub} if any(base_of(held) is not None for held in part.modules())]
        shared = any(uses[id(p)] > 1 for p in sub.parameters())
        shared |= any(holder not in within for part in with_layers for holder, _ in places[part])
        unobserved = any(part not in observed for part in parts if base_of(part) is not None)
        if not shared and not unobserved and (sub in observed or name in reading.once):
            yield Segment(name, parts, names)


def outermost(net: nn.Module, single: set[nn.Module], name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Iterate over the outermost sequential submodules, MLPs and modules in ``single``, with their names."""
    if is_sequential(net) or is_plain_mlp(net) or net in single:
        if any(True for _ in parts_of(net)):
            yield name, net
    elif not isinstance(net, nn.MultiheadAttention):
        for child, sub in net.named_children():
            yield from outermost(sub, single, f"{name}.{child}" if name else child)


def registered(net: nn.Module) -> dict[nn.Module, list[tuple[nn.Module, str]]]:
    """Return where every submodule is registered: the modules that hold it, each with the name of it there.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> both = nn.ModuleDict({"net": net, "last": net[1]})
    >>> [name for _, name in registered(both)[net[1]]]
    ['last', '1']
    """
    places: dict[nn.Module, list[tuple[nn.Module, str]]] = defaultdict(list)
    for holder in net.modules():
        for name, part in holder._modules.items():
            if part is not None:
                places[part].append((holder, name))
    return places


def _folded(segment: Segment) -> Segment:
    """Return a segment of copies with every batch normalization folded into the layer before it."""
    names: list[str] = []
    parts: list[nn.Module] = []
    for name, original in zip(segment.names, segment.parts, strict=True):
        part = copied(original)
        if plain(part, _NORMS) and parts and is_linear(parts[-1]) and part.track_running_stats:
            fuse: Any = fuse_conv_bn_eval if isinstance(parts[-1], CONVOLUTIONS) else fuse_linear_bn_eval
            if part.weight is None:  # affine=False; the fusion of linear layers needs both
                part.weight = nn.Parameter(torch.ones_like(part.running_var))
                part.bias = nn.Parameter(torch.zeros_like(part.running_var))
            parts[-1] = fuse(parts[-1], part)
            continue
        if isinstance(part, nn.ReLU | nn.LeakyReLU):
            part.inplace = False
        names.append(name)
        parts.append(part)
    return Segment(segment.name, tuple(parts), tuple(names), len(segment.parts) - len(parts))


def _skipped(name: str, part: Any) -> Skipped:
    reason = reasons.of_type(part)
    if reason is None and type(part) in CONVOLUTIONS and part.groups != 1:
        reason = "grouped convolution, whose channels do not mix"
    if reason is None and derived(part, "weight") is not None:
        reason = reasons.of_parameters(part)
    if reason is None and hooked(part):
        reason = "has forward hooks, which could change its output"
    other = f"{type(part).__name__} is not a Linear, a convolution or a Sequential of them"
    return Skipped.part(name, part, reason or other)


def neighbors(parts: Sequence[nn.Module]) -> list[tuple[int, int]]:
    """Return the indices of every linear part and of the next."""
    places = [i for i, part in enumerate(parts) if is_linear(part)]
    return list(itertools.pairwise(places))


def parameters(net: nn.Module) -> int:
    """Return the number of entries of all parameters, shared ones counted once.

    Examples
    --------
    >>> parameters(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    26
    """
    return sum(p.numel() for p in net.parameters())


def first_input(given: tuple[Any, ...], by_name: dict[str, Any]) -> Tensor:
    """Return the first input of a call, also where it was given by name."""
    return cast(Tensor, given[0] if given else next(iter(by_name.values())))


def multiply_adds(net: nn.Module, x: Tensor) -> int:
    """Return the multiply-adds of one sample in linear, convolutional, recurrent layers and projections of attention.

    Parameters
    ----------
    net : torch.nn.Module
        Any module, which is not changed; a layer counts as often as it runs. Biases, and operations of other modules
        and of functions, do not count.
    x : Tensor
        Samples, (N, ...), of which the first is used.

    Examples
    --------
    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(32, 5))
    >>> multiply_adds(net, torch.ones(1, 1, 4, 4))
    448
    """
    with sandbox():
        return _counted(copied(net).eval(), x)


def _counted(net: nn.Module, x: Tensor) -> int:
    """Return :func:`multiply_adds` of a module in eval mode, which runs."""
    count = 0

    def note(layer: Any, given: Any, out: Tensor) -> None:
        nonlocal count
        count += out.numel() * layer.weight[0].numel()

    def note_attention(layer: Any, given: tuple[Tensor, ...], by_name: dict[str, Tensor], _: Any) -> None:
        nonlocal count
        query, key, value = (*given, *(by_name[name] for name in ("query", "key", "value") if name in by_name))[:3]
        count += (2 * query.numel() + key.numel() + value.numel()) * layer.embed_dim

    def note_recurrent(layer: Any, _: Any, out: Any) -> None:
        nonlocal count
        first = out[0] if isinstance(out, tuple) else out
        dense = sum(p.numel() for p in layer.parameters() if p.ndim == 2)
        each = layer.multiply_adds() if isinstance(layer, FactoredRecurrent) else dense
        ways = 2 if getattr(layer, "bidirectional", False) else 1
        count += first.data.numel() // (ways * (getattr(layer, "proj_size", 0) or layer.hidden_size)) * each

    layers = {sub for sub in net.modules() if isinstance(sub, LINEAR)}
    handles = [layer.register_forward_hook(note) for layer in layers]
    attentions = {sub for sub in net.modules() if isinstance(sub, nn.MultiheadAttention)}
    handles += [layer.register_forward_hook(note_attention, with_kwargs=True) for layer in attentions]
    kinds = (nn.RNNBase, nn.RNNCellBase, FactoredRecurrent)
    recurrent = [sub for sub in net.modules() if isinstance(sub, kinds) and not getattr(sub, "unrolled", False)]
    handles += [layer.register_forward_hook(note_recurrent) for layer in recurrent]
    try:
        with torch.no_grad():
            net(x[:1].clone())
    finally:
        for handle in handles:
            handle.remove()
    return count


def counts(parts: Sequence[nn.Module], x: Tensor) -> Counts:
    """Return the numbers of parameters, multiply-adds per sample, and linear parts."""
    layers = sum(isinstance(part, LINEAR) for part in parts)
    return sum(map(parameters, parts)), _counted(nn.Sequential(*parts), x), layers


WEIGHTS = (0.8, 0.15, 0.05)  # of parameters, multiply-adds, linear parts


def share(some: Sequence[float], whole: Counts) -> float:
    """Return the weighted mean of three fractions of the whole: parameters, multiply-adds, linear parts.

    The last accounts for the fixed time per layer, independent of its size.

    Examples
    --------
    >>> share((50, 20, 1), (100, 80, 4))
    0.45
    """
    return sum(w * a / max(b, 1) for w, a, b in zip(WEIGHTS, some, whole, strict=True))


def cost(parts: Sequence[nn.Module], x: Tensor, whole: Counts) -> float:
    """Return the :func:`share` of the parts in the whole."""
    return share(counts(parts, x), whole)


def cheapest(prices: Tensor, tails: Tensor, scale: float) -> int:
    """Return the index of the smallest price + (tail / scale)^2.

    One scale for all layers allocates the error where it saves most: minimizing the sum of prices for a given sum of
    squared tails gives all layers the same Lagrange multiplier, 1 / scale^2.

    Parameters
    ----------
    prices, tails : Tensor
        (n,): for every size of a layer, the remaining cost and the change of the output.
    scale : float
        The change of the output that is equivalent to the whole cost.

    Examples
    --------
    >>> tails = torch.tensor([1.0, 0.1, 0.0])
    >>> [cheapest(torch.tensor([0.1, 0.2, 0.3]), tails, t) for t in (0.1, 1.0, 10.0)]
    [2, 1, 0]
    """
    return int((prices.to(tails) + (tails / scale).square()).argmin())


def lipschitz(parts: Sequence[nn.Module], x: Tensor) -> float | None:
    """Return a Lipschitz constant of parts in sequence, the product over the parts; None where one is unknown.

    Linear: the operator norm; for consecutive ones, the operator norm of their product. Convolution: the largest
    singular value on a torus that contains the padded image, which is an upper bound (T28). Activations: their largest
    slope. Pooling windows must not overlap.

    Parameters
    ----------
    parts : sequence of torch.nn.Module
        In order.
    x : Tensor
        Their input for at least one sample, (N, ...).

    Examples
    --------
    >>> shrink = nn.Linear(2, 2)
    >>> _ = shrink.weight.data.copy_(torch.eye(2) / 2)
    >>> lipschitz([shrink, nn.ReLU(), shrink], torch.ones(1, 2))
    0.25
    """
    total = 1.0
    product: Tensor | None = None  # of consecutive Linear
    value = x[:1]
    with torch.no_grad():
        for part in parts:
            if plain(part, (nn.Linear,)):
                weight = cast(Tensor, part.weight).detach().double()
                product = weight if product is None else weight @ product
            else:
                norm = _norm(part, value)
                if norm is None:
                    return None
                total *= norm * _operator_norm(product)
                product = None
            value = part(value)
    return total * _operator_norm(product)


def _operator_norm(matrix: Tensor | None) -> float:
    return 1.0 if matrix is None else float(torch.linalg.matrix_norm(matrix, 2))


def _norm(part: Any, value: Tensor) -> float | None:
    if any(map(hooked, part.modules())):
        return None
    if type(part) in _SLOPES:
        return _SLOPES[type(part)]
    if isinstance(part, nn.LeakyReLU):
        return max(1.0, abs(part.negative_slope))
    if isinstance(part, CONVOLUTIONS):
        sizes = list(value.shape[2:])
        pads = pads_of(part)
        wraps = part.padding_mode == "circular"
        too_wide = any(pad > reach for pad, reach in zip(pads, reach_of(part), strict=True))
        if part.padding_mode not in ("zeros", "circular") or (wraps and too_wide):
            return None
        sizes = sizes if wraps else [size + pad for size, pad in zip(sizes, pads, strict=True)]
        return float(conv_singular_values(part.weight, sizes, dilation=part.dilation, groups=part.groups).max())
    if isinstance(part, nn.AvgPool1d | nn.AvgPool2d | nn.MaxPool1d | nn.MaxPool2d):
        d, average = value.ndim - 2, isinstance(part, nn.AvgPool1d | nn.AvgPool2d)
        kernel, stride, padding = (
            (v,) * d if isinstance(v, int) else tuple(v) for v in (part.kernel_size, part.stride, part.padding)
        )
        partial = average and (part.ceil_mode or getattr(part, "divisor_override", None))  # clipped windows
        overlapping = any(s < k for s, k in zip(stride, kernel, strict=True)) or getattr(part, "dilation", 1) != 1
        if not partial and not overlapping and not any(padding):
            return 1 / math.sqrt(math.prod(kernel)) if average else 1.0
    return None
