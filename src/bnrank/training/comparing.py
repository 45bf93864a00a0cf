"""Comparison of two networks, or of the checkpoints of a training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn

from bnrank._core import validation
from bnrank._core.deadline import Deadline
from bnrank.measures import similarity
from bnrank.measures.comparing import Comparison, representations
from bnrank.measures.comparing.matching import read_as
from bnrank.measures.comparing.pair import compared
from bnrank.networks.inputs import Example
from bnrank.networks.reading import listed, listing
from bnrank.networks.reading.matrices import Source
from bnrank.networks.reading.stored import of_module
from bnrank.training.checkpoints import Series, record_of
from bnrank.training.watching import quantities
from bnrank.training.watching.records import Record

__all__ = ["compare"]


def compare(
    a: Source | Sequence[Source],
    b: Source | None = None,
    x: Example | None = None,
    *,
    top: int = 8,
    atol: float = 0.1,
    weight_rtol: float = 0.01,
    max_values: int = 4096,
    max_samples: int = 500,
    chunk_size: int = 4096,
    dtype: torch.dtype = torch.float64,
    max_minutes: float | None = None,
    progress: bool = False,
) -> Comparison | Record:
    """Return what differs between two networks, layer by layer; with one argument, along the checkpoints of a training.

    Tensors are matched by name; if no names are equal, by name without a prefix of modules ("model."). Tensors without
    a partner are then matched in order where their shapes are equal. The result says so, and lists what remains.
    Matrices are those of :func:`bnrank.profile`, by the same names; a tensor of a file is read as its partner in a
    module is.
    Low-rank adapters (LoRA) are not added to the weights beside them: merge them first.

    Parameters
    ----------
    a, b : torch.nn.Module, mapping or path
        Two networks, state dicts or files of weights, as :func:`bnrank.profile` takes them; the change is from a to b.
        Without b, a is a folder of checkpoints, numbered by step in their names, or a sequence of at least two
        networks, state dicts or files.
    x : Tensor or ndarray, tuple or mapping of them, optional
        Samples, as for :func:`bnrank.profile`: both networks must be modules and run on them. Adds the change of the
        outputs, and representations of layers that have a value for each sample.
    top : int
        Number k of leading singular values and vectors: of the share of the change, and of the angles. At most 10
        without b.
    atol, weight_rtol, max_values
        As for :func:`bnrank.profile`.
    max_samples : int
        Maximum number of samples, spread evenly over x. The activations of as many layers as fit in 128 MiB, or of
        one, are in memory together.
    chunk_size : int
        Samples per forward pass.
    dtype : torch.dtype
        Precision of forward passes.
    max_minutes : float, optional
        Time budget in minutes. What is not done within it is listed: weights come first, then layers in their order,
        or networks of a sequence. It is looked at between tensors, blocks of samples and networks.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Comparison
        ``.data``, an xarray.Dataset; ``.layers()`` and ``.representations()``, rows of a table; ``.to_frame()``,
        ``.plot()``, and a summary as text. Over (network, layer), network "a" and "b": ``weight_rank``,
        ``weight_relative_rank``, ``stable_rank``, ``entropy_rank``, ``full_rank``, ``parameter_norm``, ``subnormals``,
        and, with index, ``weight_singular_values``, as in a profile of weights. Over layer, with D = W_b - W_a:

        - ``change``, ||D||_F / ||W_a||_F, and ``update_norm``, ||D||_F;
        - ``update_singular_values`` (also over index), and of them ``update_stable_rank``, ``update_entropy_rank``,
          ``update_relative_rank``, and ``update_rank``: those above what rounding every stored entry once can give;
        - ``update_share``, share of ||D||_F^2 in the k largest singular values;
        - ``left_angles`` and ``right_angles``, also over angle: principal angles, in radians, between the leading
          singular subspaces of W_a and W_b. Their dimension ``subspace`` is k, or less where a rank is, or half of a
          side.

        All are NaN where shapes differ; ranks and shares of a change of 0, and angles beyond the subspaces, are NaN.
        Over tensor: ``tensor_change`` of vectors and other tensors that are no matrix.

        With x, over (layer_a, layer_b): ``cka``, ``cka_debiased`` and ``cca`` (:mod:`bnrank.similarity`) of
        the activations, flattened to (N, features); over layer_a and over layer_b, ``dimension_95_a`` and so on, as in
        a profile. Attributes ``output_change`` and ``output_change_of_spread``: the norm of the difference of the
        outputs over that of the outputs of a, and over that of their deviation from the mean, unless this is rounding.

        Along ``unmatched``, ``skipped`` and ``note``: tensors without a partner, those that are not compared, and
        remarks; see ``.notes``.
    Record
        Without b: ``.history`` over (step, layer), with the ranks of the weights and, since the first checkpoint,
        ``change``, ``update_stable_rank``, ``update_effective_rank`` and ``update_share``; ``change_since`` the one
        before, and ``full_rank``. With x, ``cka`` and ``cka_debiased`` with the first network. Of a sequence, steps
        count from 0.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, a file cannot be read, no tensors can be compared, or a module cannot be run on
        x.

    Examples
    --------
    >>> import bnrank
    >>> net = bnrank.MLP([6, 20, 4], seed=0)
    >>> state = {name: value.clone() for name, value in net.state_dict().items()}
    >>> state["layers.0.weight"] += torch.linspace(0, 1, 20)[:, None] * torch.ones(6)
    >>> found = compare(net.state_dict(), state)
    >>> found.data.layer_name.values.tolist(), found.data.update_rank.values
    (['layers.0', 'layers.1'], array([1., 0.]))
    >>> round(float(compare(net, net, torch.randn(30, 6)).data.cka[0, 0]), 9)
    1.0
    """
    top = validation.integer(top, "top")
    passes: dict[str, Any] = {
        "max_samples": validation.integer(max_samples, "max_samples"),
        "chunk_size": validation.integer(chunk_size, "chunk_size"),
        "dtype": validation.dtype(dtype),
    }
    deadline = Deadline(max_minutes)
    limits: dict[str, Any] = {
        "atol": validation.number(atol, "atol", 0.0),
        "rtol": validation.rtol(weight_rtol, "weight_rtol"),
        "max_values": validation.integer(max_values, "max_values"),
    }
    progress = validation.flag(progress, "progress")
    if b is not None:
        one = cast(Source, a)
        return compared(one, b, x, top=top, limits=limits, passes=passes, progress=progress, deadline=deadline)
    validation.expect(top <= quantities.LARGEST, "top", top, f"at most {quantities.LARGEST} without b")
    if isinstance(a, str | os.PathLike):
        expected = "it with modules: files of weights have no code"
        validation.expect(x is None, "x", "samples with a folder of checkpoints", expected)
        return record_of(a, "a", top, deadline)
    expected = "two networks, a folder of checkpoints, or a sequence of networks, state dicts or files"
    if not isinstance(a, list | tuple):
        raise TypeError(f"a, b: got {validation.describe(a)} alone, expected {expected}")
    validation.expect(len(a) > 1, "a", f"{len(a)} networks", "at least 2")
    return _sequence(list(a), x, top, passes, deadline)


def _sequence(sources: list[Any], x: Any, top: int, passes: dict[str, Any], deadline: Deadline) -> Record:
    """Return the record of networks in order, each compared with the first."""
    series, notes = Series(top), []
    first: representations.Seen | None = None
    module = next((source for source in sources if isinstance(source, nn.Module)), None)
    for step, source in enumerate(sources):
        if step and deadline.over():
            notes.append(f"networks {step} to {len(sources) - 1}: {deadline.missed}")
            break
        similar: dict[str, dict[str, float]] = {}
        if x is not None:
            seen = representations.View(source, x, f"a[{step}]", **passes).seen(deadline)
            first = first or seen
            notes += [text for text in seen.left_out if text not in notes]
            similar = _similar(first, seen)
        with listing(source, f"a[{step}]") as held:
            matrices = held.matrices if module is None else read_as(held, listed(of_module(module), ""))
            series.add(step, matrices, similar)
    validation.expect(any(m.rows for m in series.measured), "a", "networks without matrices", "some")
    done = len(series.measured)
    title = f"{f'{done} of ' if done < len(sources) else ''}{len(sources)} networks"
    return series.record(title, notes, ["similarity"] if x is not None else [])


def _similar(first: representations.Seen, seen: representations.Seen) -> dict[str, dict[str, float]]:
    """Return the CKA of the layers of the first network with those of the same name."""
    rows: dict[str, dict[str, float]] = {}
    grams = dict(zip(first.names, first.grams, strict=True))
    for name, other in zip(seen.names, seen.grams, strict=True):
        gram = grams.get(name)
        if gram is not None and other is not None and seen.samples > 1:
            rows[name] = {"cka": float(similarity.cka_matrix([gram], [other])[0, 0])}
            if seen.samples > 3:
                rows[name]["cka_debiased"] = float(similarity.cka_matrix([gram], [other], debiased=True)[0, 0])
    return rows
