"""All statements of the theory, and their verdicts on one network."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.files import runnable
from bnrank.theory.facts import Facts
from bnrank.theory.statements import (
    convergence,
    domains,
    escape,
    interpolation,
    invariances,
    ranks,
    regression,
    representation,
    structure,
    symmetry,
)
from bnrank.theory.verdicts import NotApplicable, Statement, Verdicts, statements_in

TOPICS = (
    *(representation, ranks, structure, interpolation, symmetry),
    *(domains, regression, escape, invariances, convergence),
)


def _number(statement: Statement) -> tuple[int, str]:
    return int("".join(c for c in statement.id if c.isdigit())), statement.id


STATEMENTS: tuple[Statement, ...] = tuple(sorted((s for topic in TOPICS for s in statements_in(topic)), key=_number))
"""All statements, in the order of their ids."""


def check(
    net: nn.Module | Mapping[str, Tensor] | str | os.PathLike[str],
    x: Tensor | np.ndarray,
    y: Tensor | np.ndarray | None = None,
    ridge: float | None = None,
    *,
    only: str | Sequence[str] | None = None,
    statements: Statement | Sequence[Statement] | None = None,
    rtol: float = 1e-6,
    seed: int = 0,
    max_samples: int = 500,
    activation: str | float | None = None,
) -> Verdicts:
    """Return the verdicts of all statements of the theory on a network, with both sides of each.

    Parameters
    ----------
    net : torch.nn.Module
        Any module with finite parameters. Most statements are about a chain of linear layers with one activation
        sigma_s between them (a :class:`bnrank.MLP`, or a Sequential of Linear and ReLU or LeakyReLU); for other
        modules they are "not applicable". Or the file of a network that bnrank saved, or the state dict or weights of
        such a chain, with ``activation``.
    x : Tensor or ndarray
        Samples, (N, ...).
    y : Tensor or ndarray, optional
        Targets, (N, d_out), for the mean squared error; or class indices, (N,), integers, for the cross-entropy of
        outputs (N, C).
    ridge : float, optional
        lambda of the loss C + lambda ||theta||^2 (biases penalized) that the network was trained with.
    only : str or sequence of str, optional
        Ids of statements, such as "T4". Default: all.
    statements : Statement or sequence of Statement, optional
        The statements to choose from, such as your own (see docs/how-to/add-a-statement.md) or
        ``(*bnrank.theory.STATEMENTS, own)``. Default: those of the library.
    rtol : float
        A rank is the number of singular values above ``rtol`` times the largest.
    seed : int
        Random seed of searches and pairs of samples.
    max_samples : int
        Largest number of samples on which statements are checked, evenly spaced. The loss and its gradient use all
        samples.
    activation : str or float, optional
        The activation between the layers of a state dict or file of weights, which do not say it: "relu", "linear", the
        slope of a leaky ReLU, or an elementwise function of ``torch.nn.functional`` by its name, such as "tanh".

    Returns
    -------
    Verdicts
        One verdict per statement: "holds", "violated", "not applicable" (``reason`` names the assumption that fails) or
        "inconclusive" (within numerical error, or a side cannot be evaluated), with left side, right side, slack,
        assumptions and source. The ``label`` of a bound that cannot fail for this network is "holds (vacuous)". A
        network that satisfies all assumptions of a theorem cannot violate it. A violation means that an assumption that
        cannot be checked fails, or that a computed number is wrong.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, parameters are NaN or infinite, the module cannot be run on x, or the
        activation is not known.

    Examples
    --------
    >>> import torch, bnrank
    >>> verdicts = bnrank.check(bnrank.MLP([3, 8, 8, 2], seed=0), torch.randn(20, 3), only=["T4", "T14"])
    >>> [(v.id, v.status) for v in verdicts]
    [('T4', 'holds'), ('T14', 'not applicable'), ('T14', 'not applicable')]
    """
    wanted = _given(statements)
    net, _ = runnable(net, activation)
    facts = Facts(net, x, y, ridge, rtol=rtol, seed=seed, max_samples=max_samples)
    if only is not None:
        given = (
            [only] if isinstance(only, str) else validation.sequence(only, "only", "ids of statements, such as 'T4'")
        )
        known = list(dict.fromkeys(s.id for s in wanted))
        ids = [validation.choice(i, "only", known) for i in given]
        wanted = tuple(s for s in wanted if s.id in ids)
    return Verdicts(tuple(statement(facts) for statement in wanted), _about(facts))


def _given(statements: Statement | Sequence[Statement] | None) -> tuple[Statement, ...]:
    """Return the statements of an argument of `check`."""
    if statements is None:
        return STATEMENTS
    expected = "statements, such as bnrank.theory.STATEMENTS or your own (bnrank.theory.statement)"
    several = (
        [statements] if isinstance(statements, Statement) else validation.sequence(statements, "statements", expected)
    )
    for one in several:
        validation.expect(isinstance(one, Statement), "statements", one, expected, TypeError)
    return tuple(several)


def _about(facts: Facts) -> dict[str, object]:
    about: dict[str, object] = {"network": type(facts.net).__name__}
    try:
        chain = facts.chain
        about |= {"depth": chain.depth, "widths": list(chain.widths), "slope": chain.slope, "biases": chain.bias}
    except NotApplicable as reason:
        about["not a chain"] = str(reason)
    about |= {"samples": facts.samples, "samples checked": len(facts.x)}
    with suppress(OverflowError):
        about["‖θ‖²"] = facts.parameter_norm
    with suppress(NotApplicable, OverflowError):
        about["largest rank of Jf"] = facts.rank
        about["samples on a kink"] = int(facts.near_kinks.sum())
    if facts.ridge is not None:
        about["ridge"] = facts.ridge
    with suppress(NotApplicable, OverflowError):
        about["cost"] = facts.data_loss
        about["stationarity"] = facts.stationarity
    return about | {"rtol": facts.rtol, "seed": facts.seed}
