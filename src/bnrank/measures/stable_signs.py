"""Stable signs along a sequence of networks (T43), and convergence of their direction, which implies them.

`bnrank.measures.signs` follows signs during training; here whole networks are stored, as in ``Flow.networks``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.measures.signs import SignTrace
from bnrank.networks.functional import unwrap

__all__ = ["Convergence", "Parameters", "changed", "changed_since", "directional_convergence", "stable_since"]

Parameters = nn.Module | Mapping[str, Tensor]
Array = np.ndarray[Any, Any]


def changed(before: Parameters, after: Parameters) -> dict[str, float]:
    """Return the fraction of the entries of every parameter whose sign differs between two networks.

    The sign of an entry is -1, 0 or 1: one that becomes zero, or leaves it, has changed.

    Parameters
    ----------
    before, after : nn.Module or mapping
        Networks of one architecture, or named tensors of the same names and shapes.

    Returns
    -------
    dict
        Parameter name -> fraction in [0, 1].

    Raises
    ------
    TypeError, ValueError
        If an argument is neither a module nor a mapping, the arguments do not match, or an entry is not finite.

    Notes
    -----
    Source: LeJegelka2022, T43.

    Examples
    --------
    >>> changed({"w": torch.tensor([1.0, -2.0, 3.0, 4.0])}, {"w": torch.tensor([2.0, 2.0, 0.0, 4.0])})
    {'w': 0.5}
    """
    return _fractions(_changed_at([before, after], ("before", "after")), 0)


def changed_since(networks: Sequence[Parameters], times: Sequence[float] | Array, t: float) -> dict[str, float]:
    """Return the fraction of the entries of every parameter whose sign changes at ``t`` or later.

    An entry counts if its sign in some network with time >= t differs from that in the preceding network. For t up to
    the first time this is the fraction that ever changes; it is non-increasing in t. Changes that are reversed between
    two networks are not detected.

    Parameters
    ----------
    networks : sequence of nn.Module or mapping
        In order of time, as `bnrank.flow` gives them in ``Flow.networks``.
    times : sequence of float
        Their times, in non-decreasing order: ``flow.times[flow.network_rows]``.
    t : float
        Start time; at most the last time.

    Returns
    -------
    dict
        Parameter name -> fraction in [0, 1].

    Raises
    ------
    TypeError, ValueError
        If the networks do not match, their number differs from that of the times, or t is after the last time.

    Examples
    --------
    >>> path = [{"w": torch.tensor([a, 1.0])} for a in (1.0, -1.0, -2.0)]
    >>> [changed_since(path, [0, 1, 2], t) for t in (0, 1, 1.5)]
    [{'w': 0.5}, {'w': 0.5}, {'w': 0.0}]
    """
    changed_at, when = _sequence(networks, times)
    t = validation.number(t, "t")
    validation.expect(t <= when[-1], "t", f"{t:g}", f"at most the last time, {when[-1]:g}")
    return _fractions(changed_at, max(int(np.searchsorted(when, t)) - 1, 0))


def stable_since(networks: Sequence[Parameters], times: Sequence[float] | Array) -> dict[str, float]:
    """Return the time from which the signs of every parameter are those of the last network.

    The first time if no sign ever changes, the last time if some sign changes in the last step. The signs are stable up
    to the last network only: see :func:`directional_convergence`.

    Parameters
    ----------
    networks, times
        As in :func:`changed_since`.

    Returns
    -------
    dict
        Parameter name -> time.

    Raises
    ------
    TypeError, ValueError
        If the networks do not match, or their number differs from that of the times.

    Examples
    --------
    >>> path = [{"v": torch.tensor([1.0]), "w": torch.tensor([a])} for a in (1.0, -1.0, -2.0)]
    >>> stable_since(path, [0, 1, 2])
    {'v': 0.0, 'w': 1.0}
    """
    changed_at, when = _sequence(networks, times)
    return {name: float(when[int(at.max()) if at.numel() else 0]) for name, at in changed_at.items()}


@dataclass(frozen=True)
class Convergence:
    """Distances of the direction of the weights from the last one, and the consequence for signs (T43).

    Attributes
    ----------
    times : ndarray, shape (T,)
        Times of the networks.
    distances : ndarray, shape (T,)
        ||theta / ||theta|| - u||, u the direction of the last network; 0 in the last row.
    smallest : float
        Smallest |entry| of u.
    smallest_of : dict
        The same per parameter.
    since : float
        The first time from which on smallest > distance: within this ball around u no entry can have another sign
        than in u. The last time, if only the last network is in the ball; inf where u has a zero entry.
    """

    times: Array = field(repr=False)
    distances: Array = field(repr=False)
    smallest: float
    smallest_of: Mapping[str, float]
    since: float

    @property
    def margins(self) -> Array:
        """Smallest |entry| of u over the distance, (T,); above 1 no sign can differ from that of u. Last row inf."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.distances > 0, self.smallest / self.distances, np.inf if self.smallest > 0 else 0.0)

    @property
    def reached(self) -> bool:
        """Whether the ball was entered before the last network, which is in it by definition."""
        return bool(self.since < self.times[-1])


def directional_convergence(networks: Sequence[Parameters], times: Sequence[float] | Array) -> Convergence:
    """Return how the direction theta / ||theta|| of all weights together approaches that of the last network.

    If it converges to a limit with no zero entry, the signs are eventually constant (T43): once the distance is below
    the smallest |entry| of the limit, every entry has the limit's sign. The last direction is used in place of the
    limit, so convergence is not proved; distances that decrease steadily well before the end are evidence for it.

    Parameters
    ----------
    networks, times
        As in :func:`changed_since`.

    Returns
    -------
    Convergence

    Raises
    ------
    TypeError, ValueError
        If the networks do not match, their number differs from that of the times, or a network is zero.

    Examples
    --------
    >>> path = [{"w": torch.tensor([3.0, a])} for a in (-4.0, 3.9, 4.0)]
    >>> found = directional_convergence(path, [0, 1, 2])
    >>> found.distances.round(3).tolist(), round(found.smallest, 3), found.since
    ([1.6, 0.012, 0.0], 0.6, 1.0)
    """
    named = _matched(networks, [f"networks[{i}]" for i in range(len(networks))])
    when = _times(times, len(named))
    rows = torch.stack([torch.cat([tensor.flatten() for tensor in entry.values()]) for entry in named])
    size = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    if not bool((size > 0).all()):
        raise ValueError(f"networks[{int(size.argmin())}]: all its parameters are zero, expected a direction")
    directions = rows / size
    limit = directions[-1]
    distances = torch.linalg.vector_norm(directions - limit, dim=1).numpy()
    pieces = limit.abs().split([tensor.numel() for tensor in named[0].values()])
    smallest_of = {name: float(piece.min()) for name, piece in zip(named[0], pieces, strict=True) if piece.numel()}
    smallest = min(smallest_of.values())
    outside = np.flatnonzero(distances >= smallest)
    row = int(outside[-1]) + 1 if len(outside) else 0
    since = float(when[row]) if row < len(when) else float("inf")
    return Convergence(when, distances, smallest, smallest_of, since)


def _sequence(networks: Sequence[Parameters], times: Sequence[float] | Array) -> tuple[dict[str, Tensor], Array]:
    changed_at = _changed_at(networks, [f"networks[{i}]" for i in range(len(networks))])
    return changed_at, _times(times, len(networks))


def _changed_at(networks: Sequence[Parameters], names: Sequence[str]) -> dict[str, Tensor]:
    """Return, for every entry, the index of the network in which its sign last changed; 0 if it never did."""
    trace = SignTrace()
    for number, parameters in enumerate(_matched(networks, names)):
        trace.look(parameters, step=number)
    return trace.changed_at


def _matched(networks: Sequence[Parameters], names: Sequence[str]) -> list[dict[str, Tensor]]:
    """Return every network's parameters, float64, in the order of the first one's."""
    validation.expect(len(networks) != 0, "networks", "none", "at least one")
    found = [_parameters(network, name) for network, name in zip(networks, names, strict=True)]
    shapes = {key: tuple(tensor.shape) for key, tensor in found[0].items()}
    for entry, name in zip(found[1:], names[1:], strict=True):
        theirs = {key: tuple(tensor.shape) for key, tensor in entry.items()}
        if theirs != shapes:
            apart = sorted({*theirs.items()} ^ {*shapes.items()})
            raise ValueError(f"{name}: its parameters differ from those of {names[0]}, the same expected: {apart[:4]}")
    return [{key: entry[key] for key in shapes} for entry in found]


def _parameters(network: Parameters, name: str) -> dict[str, Tensor]:
    if isinstance(network, nn.Module):
        named: Mapping[str, Tensor] = dict(unwrap(network).named_parameters())
    elif isinstance(network, Mapping) and all(isinstance(tensor, Tensor) for tensor in network.values()):
        named = network
    else:
        raise TypeError(f"{name}: got {validation.describe(network)}, expected a torch.nn.Module or named tensors")
    held = {key: tensor.detach().to("cpu", torch.float64) for key, tensor in named.items()}
    validation.expect(any(tensor.numel() for tensor in held.values()), name, "no parameters", "at least one")
    bad = [key for key, tensor in held.items() if not bool(torch.isfinite(tensor).all())]
    validation.expect(not bad, name, f"NaN or infinite entries in {', '.join(bad[:5])}", "finite parameters")
    return held


def _times(times: Sequence[float] | Array, count: int) -> Array:
    when = np.asarray(times, dtype=float)
    validation.expect(when.shape == (count,), "times", when, f"one per network, ({count},)")
    ordered = not np.isnan(when).any() and bool((when[1:] >= when[:-1]).all())
    validation.expect(ordered, "times", "NaN or a decrease", "numbers in non-decreasing order")
    return when


def _fractions(changed_at: Mapping[str, Tensor], number: int) -> dict[str, float]:
    return {name: float((at > number).sum()) / max(1, at.numel()) for name, at in changed_at.items()}
