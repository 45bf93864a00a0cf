"""What several statements need: samples as vectors, and what rounding can have added to what is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from bnrank.theory.cost.search import rounded
from bnrank.theory.facts import Facts
from bnrank.theory.verdicts import Inconclusive, NotApplicable

__all__ = ["counted_values", "vectors", "within_range"]


def vectors(facts: Facts) -> Tensor:
    """Return the samples as vectors, (N, d); raises NotApplicable for class numbers and tokens.

    Examples
    --------
    >>> import bnrank
    >>> vectors(Facts(bnrank.MLP([2, 1]), torch.ones(3, 2))).shape
    torch.Size([3, 2])
    """
    if not facts.x.is_floating_point():
        raise NotApplicable("the inputs are vectors", f"dtype {facts.x.dtype}")
    return facts.x.flatten(1)


def counted_values(facts: Facts, sample: int) -> Tensor:
    """Return the singular values of Jf at a sample, 0 for those that do not count, less what rounding can have added.

    Rounding noise of 1e-17 is not small once it is raised to the power 2/L.

    Examples
    --------
    >>> import bnrank
    >>> net = bnrank.networks.from_layers([torch.diag(torch.tensor([2.0, 0.0]))])
    >>> [round(v, 9) for v in counted_values(Facts(net, torch.ones(1, 2)), 0).tolist()]
    [2.0, 0.0]
    """
    _, error, _ = rounded(facts.chain, facts.x[sample].flatten())
    values = (facts.jacobian_values[sample] - error).clamp(min=0.0)
    return torch.where(values > facts.rtol * values[0], values, 0.0)


@contextmanager
def within_range() -> Iterator[None]:
    """Raise Inconclusive where values leave the range of floats; decorates statements.

    Examples
    --------
    >>> with within_range():
    ...     np.float64(1e300) * np.float64(1e300)
    Traceback (most recent call last):
    bnrank.theory.verdicts.Inconclusive: values leave the range of floats: overflow encountered in scalar multiply
    """
    try:
        with np.errstate(over="raise"):
            yield
    except (FloatingPointError, OverflowError, torch.linalg.LinAlgError, np.linalg.LinAlgError) as error:
        raise Inconclusive(f"values leave the range of floats: {error}") from error
