"""The comparison of two networks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bnrank._core import remarks, validation
from bnrank._core.deadline import Deadline
from bnrank._core.progress import bar
from bnrank._version import __version__
from bnrank.measures import weights as spectra
from bnrank.measures.comparing import matching, representations, weights
from bnrank.measures.comparing.result import Comparison
from bnrank.networks.reading import Listing, listing
from bnrank.networks.reading.matrices import Source
from bnrank.networks.reading.stored import UnreadableError

if TYPE_CHECKING:
    import xarray as xr


def compared(
    a: Source,
    b: Source,
    x: Any,
    *,
    top: int,
    atol: float,
    rtol: float,
    max_values: int,
    max_samples: int,
    chunk_size: int,
    dtype: torch.dtype,
    progress: bool,
    deadline: Deadline,
) -> Comparison:
    """Return the comparison of two networks, as :func:`bnrank.compare` describes it."""
    views = []
    if x is not None:
        views = [representations.View(net, x, name, max_samples, dtype) for net, name in ((a, "a"), (b, "b"))]
        alike = len(views[0].samples) == len(views[1].samples)
        validation.expect(alike, "x", "samples of two kinds", "as many for both")
    with listing(a, "a") as first, listing(b, "b") as second, bar(progress, "tensors", 1, counted=False) as tell:
        data = _tensors(first, second, top, deadline, tell, {"atol": atol, "rtol": rtol, "max_values": max_values})
        titles = [first.title, second.title]
    if views:
        similar, notes = representations.dataset(*(view.seen(chunk_size, deadline) for view in views))
        data = data.merge(similar, combine_attrs="override").assign_attrs(similar.attrs)
        data = remarks.attach(data, "note", notes)
    elif not data.sizes["layer"] and not data.sizes["tensor"]:
        reasons = [f"{row['name']}: {row['reason']}" for row in remarks.rows(data, "skipped")]
        reasons += [
            f"{row['name']} ({row['shape']}) only in {row['network']}" for row in remarks.rows(data, "unmatched")
        ]
        advice = "".join(f"; {row['name']}: {row['note']}" for row in remarks.rows(data, "note"))
        name = "max_minutes" if deadline.over() else "a, b"
        raise ValueError(f"{name}: got no tensors to compare ({'; '.join(reasons[:6])}), expected some{advice}")
    if titles[0] == titles[1] and isinstance(a, str | os.PathLike) and isinstance(b, str | os.PathLike):
        titles = [os.fspath(a), os.fspath(b)]
    one_class = titles[0] == titles[1] and isinstance(a, nn.Module)
    data = data.assign_attrs(
        title=f"two networks of class {titles[0]}" if one_class else " and ".join(titles),
        name_a=titles[0],
        name_b=titles[1],
        atol=atol,
        weight_rtol=rtol,
        top=top,
        max_values=max_values,
        dtype=str(dtype).removeprefix("torch."),
        bnrank_version=__version__,
    )
    for key, long_name in (weights.LONG_NAMES | representations.LONG_NAMES | spectra.LONG_NAMES).items():
        if key in data:
            data[key].attrs |= {"long_name": long_name, "units": "1"}
    return Comparison(data)


def _tensors(
    a: Listing, b: Listing, top: int, deadline: Deadline, tell: Callable[[float, str], object], limits: dict[str, Any]
) -> xr.Dataset:
    """Return what differs between the tensors of two networks, and which ones are not compared."""
    pairs, alone = matching.matched(a, b)
    rows: list[weights.Row] = []
    reasons: dict[str, str] = {}  # by the tensor that is not compared
    for i, pair in enumerate(pairs):
        tell(i / len(pairs), f"tensors: {pair.a.name[-40:]}")
        try:
            rows += weights.measured(pair, top, deadline)
        except UnreadableError as error:
            reasons[pair.a.name] = str(error)
    unread = {t.name for held in (a, b) for t in held.records if not (t.is_tensor and t.floating)}
    reasons |= {other.name: other.reason for held in (a, b) for other in held.others if other.name in unread}
    unmatched = [
        {"name": tensor.name, "shape": " x ".join(map(str, tensor.shape)), "network": network}
        for network, tensors in alone.items()
        for tensor in tensors
    ]
    data = remarks.attach(weights.dataset(rows, **limits), "note", matching.notes(pairs, alone))
    data = remarks.attach(data, "skipped", [{"name": name, "reason": text} for name, text in reasons.items()])
    return remarks.attach(data, "unmatched", unmatched)
