"""Every parameter of a module: by which layers it is measured, or why it is not."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank.networks.functional import unwrap
from bnrank.networks.inputs import Example
from bnrank.networks.reading import Reading, read_or


@dataclass(frozen=True)
class Entry:
    """One parameter of a module.

    Attributes
    ----------
    name : str
        Its name; a parameter that is used in several places has the first.
    shape : tuple of int
        Its shape.
    layers : tuple of str
        The layers of the reading that have it as weight or bias, or whose weight is computed from it.
    reason : str
        Why there is none; empty if there is one.
    """

    name: str
    shape: tuple[int, ...]
    layers: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Account(Printed):
    """Every parameter of a module, in order of registration; ``print`` shows a table.

    Attributes
    ----------
    entries : tuple of Entry
        One per parameter.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3))
    >>> account = bnrank.networks.account(net)                  # a bnrank.networks.Account
    >>> len(account.entries), [entry.name for entry in account.measured]
    (4, ['0.weight', '0.bias'])
    """

    entries: tuple[Entry, ...]

    @property
    def measured(self) -> tuple[Entry, ...]:
        """Parameters that belong to a layer."""
        return tuple(entry for entry in self.entries if entry.layers)

    @property
    def listed(self) -> tuple[Entry, ...]:
        """Parameters that belong to none, with the reason."""
        return tuple(entry for entry in self.entries if not entry.layers)

    def _content(self) -> list[Part]:
        rows = [
            {
                "parameter": e.name,
                "shape": e.shape,
                "measured in": f"not: {e.reason}" if e.reason else ", ".join(n or "itself" for n in e.layers),
            }
            for e in self.entries
        ]
        return [Table("Parameters, and where they are measured", rows)] if rows else ["no parameters"]


def account(net: nn.Module, x: Example | None = None, *, reading: Reading | None = None) -> Account:
    """Return for every parameter of a module the layers that measure it, or the reason why none does.

    Parameters
    ----------
    net : torch.nn.Module
        Any module; not changed.
    x : Tensor or ndarray, tuple or mapping of them, optional
        Samples, as for :func:`read`.
    reading : Reading, optional
        The result of ``read(net, x)``.

    Returns
    -------
    Account
        Its ``entries`` are those of ``net.named_parameters()``: none is left out.

    Raises
    ------
    TypeError, ValueError
        As :func:`read`.

    Examples
    --------
    >>> print(account(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))))
    parameter  shape  measured in
    0.weight   3, 2   0
    0.bias     3      0
    1.weight   3      not: normalization: divides by a function of the values
    1.bias     3      not: normalization: divides by a function of the values
    """
    net = unwrap(net)
    reading = read_or(reading, net, x)
    layers: dict[str, list[str]] = {}
    for layer in reading.weights:
        parts = [layer.matrix.stored, *([layer.matrix.bias_stored] if layer.matrix.bias_stored is not None else [])]
        names = {stored.name for stored in parts}
        for name in names | {stored.name for stored in reading.listing.records if stored.into in names}:
            layers.setdefault(name, []).append(layer.name)
    reasons = {part.name: part.reason for part in reading.skipped}
    others = {other.name: other.reason for other in reading.listing.others}
    entries = []
    for name, parameter in net.named_parameters():
        owners, reason = tuple(layers.get(name, ())), ""
        if not owners:
            reason = reasons.get(name.rpartition(".")[0]) or others.get(name, "a tensor that no layer uses")
        entries.append(Entry(name, tuple(parameter.shape), owners, reason))
    return Account(tuple(entries))
