"""The comparison of two networks."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from bnrank._core import remarks, validation
from bnrank._core.deadline import Deadline
from bnrank._core.progress import bar
from bnrank._version import __version__
from bnrank.measures import weights as spectra
from bnrank.measures.comparing import representations, weights
from bnrank.measures.comparing.matching import Matching, matched
from bnrank.measures.comparing.result import Comparison
from bnrank.measures.comparing.weights import Weights
from bnrank.networks.reading.matrices import Source, listing


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
    deadline: Deadline | None = None,
) -> Comparison:
    """Return the comparison of two networks, as :func:`bnrank.compare` describes it.

    Examples
    --------
    >>> some = {"top": 2, "atol": 0.1, "rtol": 0.01, "max_values": 9, "max_samples": 9, "chunk_size": 9}
    >>> found = compared(
    ...     {"w": torch.eye(3)}, {"w": 2 * torch.eye(3)}, None, dtype=torch.float64, progress=False, **some
    ... )
    >>> found.data["change"].values, found.data["update_rank"].values
    (array([1.]), array([3.]))
    """
    deadline = deadline or Deadline()
    views = []
    if x is not None:
        views = [representations.View(net, x, name, max_samples, dtype) for net, name in ((a, "a"), (b, "b"))]
        alike = len(views[0].samples) == len(views[1].samples)
        validation.expect(alike, "x", "samples of two kinds", "as many for both")
    with listing(a, "a") as own, listing(b, "b") as other:
        title, other_title = own.title, other.title
        matching = matched(own.records, other.records)
        shapes = {e.name: e.shape for e in own.records}, {e.name: e.shape for e in other.records}
        found = Weights()
        with bar(progress, "tensors", len(matching.pairs)) as tell:
            for i, pair in enumerate(matching.pairs):
                tell(i, f"tensors: {pair.a.name[-40:]}")
                if deadline.over():
                    found.skipped.append({"name": pair.a.name, "reason": deadline.missed})
                else:
                    found.add(pair, shapes, top)
    notes, skipped = matching.notes + found.notes, found.skipped
    data = found.dataset(atol, rtol, top, max_values)
    if views:
        measured, more = representations.dataset(*(view.seen(chunk_size, deadline) for view in views))
        notes += more
        data = data.merge(measured, combine_attrs="override").assign_attrs(measured.attrs)
    if not data.sizes["layer"] and not data.sizes["tensor"] and not views:
        raise ValueError(_nothing(title, other_title, matching, skipped, deadline))
    same = title == other_title
    if same and isinstance(a, str | os.PathLike) and isinstance(b, str | os.PathLike):
        title, other_title = os.fspath(a), os.fspath(b)
    about = {
        "title": f"two networks of class {title}"
        if same and isinstance(a, nn.Module)
        else f"{title} and {other_title}",
        "name_a": title,
        "name_b": other_title,
        "atol": atol,
        "weight_rtol": rtol,
        "top": top,
        "max_values": max_values,
        "dtype": str(dtype).removeprefix("torch."),
        "bnrank_version": __version__,
    }
    data = remarks.attach(data.assign_attrs(about), "note", notes)
    data = remarks.attach(data, "skipped", skipped)
    data = remarks.attach(data, "unmatched", matching.alone)
    for key, long_name in (weights.LONG_NAMES | representations.LONG_NAMES | spectra.LONG_NAMES).items():
        if key in data:
            data[key].attrs |= {"long_name": long_name, "units": "1"}
    return Comparison(data)


def _nothing(title: str, other: str, matching: Matching, skipped: list[dict[str, str]], deadline: Deadline) -> str:
    late = sum(row["reason"] == deadline.missed for row in skipped)
    if late:
        return (
            f"max_minutes: got {deadline.minutes:g}, in which none of {late} tensors was compared, expected more time"
        )
    reasons = [f"{row['name']}: {row['reason']}" for row in skipped[:3]]
    if not reasons:
        sides = ((title, matching.only_a), (other, matching.only_b))
        reasons = [
            f"{name} has {', '.join(f'{e.name} {tuple(e.shape)}' for e in entries[:3])}{', ...' * (len(entries) > 3)}"
            for name, entries in sides
        ]
    advice = "".join(f"; {row['name']}: {row['note']}" for row in matching.adapters)
    expected = f"expected equal names, or shapes in order{advice}"
    return f"a, b: got no tensors that can be compared ({'; '.join(reasons)}), {expected}"
