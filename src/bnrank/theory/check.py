"""Every statement of the theory on one network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.theory.facts import Facts
from bnrank.theory.statements import STATEMENTS
from bnrank.theory.verdict import NotApplicable, Verdicts

__all__ = ["check"]


def check(
    net: nn.Module,
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray | None = None,
    ridge: float | None = None,
    *,
    only: str | Sequence[str] | None = None,
    rtol: float = 1e-6,
    seed: int = 0,
    max_samples: int = 500,
) -> Verdicts:
    """Check every statement of the theory that applies to a network, and compute both of its sides.

    Parameters
    ----------
    net : torch.nn.Module
        Any module with finite parameters. Most statements are about a chain of linear layers with one activation
        sigma_s between them (a :class:`bnrank.MLP`, or a Sequential of Linear and ReLU or LeakyReLU); on other modules
        they are not applicable.
    x : Tensor or ndarray
        Samples, (N, ...).
    y : Tensor or ndarray, optional
        Targets, (N, d_out), for the mean squared error of theory.md section 0; class numbers, (N,), integers, for the
        cross-entropy.
    ridge : float, optional
        lambda of the loss C + lambda ||theta||^2 (biases penalized) that the network was trained with.
    only : str or sequence of str, optional
        Ids of the statements wanted, such as "T4".
    rtol : float
        Singular values above ``rtol`` times the largest count for a rank.
    seed : int
        Of random searches and pairs of samples.
    max_samples : int
        Of more samples, so many evenly spaced ones are looked at; the loss and its gradient take all of them.

    Returns
    -------
    Verdicts
        One verdict per statement: "holds", "violated", "not applicable" (``reason`` names the assumption that fails) or
        "inconclusive" (within numerical error, or a side that cannot be had), with left side, right side, slack,
        assumptions and source. A bound that cannot fail, as it is above all values possible, "holds", and its ``label``
        is "holds (vacuous)". A theorem is never violated by a network that fulfils its assumptions: a violation says
        that an assumption that cannot be checked fails, or that something is computed wrongly.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, parameters are NaN or infinite, or the module cannot be run on x.

    Examples
    --------
    >>> import torch, bnrank
    >>> verdicts = bnrank.check(bnrank.MLP([3, 8, 8, 2], seed=0), torch.randn(20, 3), only=["T4", "T14"])
    >>> [(v.id, v.status) for v in verdicts]
    [('T4', 'holds'), ('T14', 'not applicable'), ('T14', 'not applicable')]
    """
    facts = Facts(net, x, y, ridge, rtol=rtol, seed=seed, max_samples=max_samples)
    wanted = STATEMENTS
    if only is not None:
        known = list(dict.fromkeys(s.id for s in STATEMENTS))
        ids = [validation.choice(i, "only", known) for i in ([only] if isinstance(only, str) else _listed(only))]
        wanted = tuple(s for s in STATEMENTS if s.id in ids)
    verdicts = tuple(statement(facts) for statement in wanted)
    return Verdicts(verdicts, _about(facts))


def _listed(only: Any) -> Iterable[Any]:
    if not isinstance(only, Iterable):
        raise TypeError(f"only: got {validation.describe(only)}, expected ids of statements, such as 'T4'")
    return only


def _about(facts: Facts) -> dict[str, object]:
    about: dict[str, object] = {"network": type(facts.module).__name__}
    try:
        chain = facts.chain
        about |= {"depth": chain.depth, "widths": list(chain.widths), "slope": chain.slope, "biases": chain.bias}
    except NotApplicable as reason:
        about["not a chain"] = str(reason)
    about |= {"samples": facts.samples, "samples looked at": len(facts.x)}
    with suppress(OverflowError):
        about["‖θ‖²"] = facts.parameter_norm
    with suppress(NotApplicable, OverflowError):
        about["largest rank of Jf"] = facts.rank
        about["samples on a kink"] = int(facts.beside_kinks.sum())
    if facts.ridge is not None:
        about["ridge"] = facts.ridge
    with suppress(NotApplicable, OverflowError):
        about["cost"] = facts.data_loss
        about["stationarity"] = facts.stationarity
    return about | {"rtol": facts.rtol, "seed": facts.seed}
