"""Samples on which statements are checked, and singular values of Jacobians minus their rounding error."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from bnrank._core import linalg
from bnrank._core.sampling import evenly_spaced
from bnrank.theory.cost.search import rounded
from bnrank.theory.facts import Facts
from bnrank.theory.path import Path
from bnrank.theory.verdicts import assume

ROWS = 16  # largest number of samples that each require decompositions of every layer
FEW = 4  # largest number of samples that each require a backward pass per output


@dataclass(frozen=True)
class Sample:
    """A sample off the kinks, with the linear maps of the chain at the sample."""

    row: int
    facts: Facts
    checked: int

    @property
    def path(self) -> Path:
        """The linear maps of the chain at the sample."""
        return self.facts.paths[self.row]

    def note(self, detail: str = "") -> str:
        """Return a note with the sample, a detail and the number of samples checked."""
        where = f"sample {self.row}{f', {detail}' if detail else ''}"
        return f"{where}; {self.checked} of {len(self.facts.x)} samples checked"


def smooth(facts: Facts, limit: int = ROWS, *, parameters: bool = False) -> Iterator[Sample]:
    """Return evenly spaced samples off the kinks: f is differentiable in x and, with ``parameters``, also in theta.

    Close to a kink, two evaluations of the same Jacobian may use different sides.

    Raises
    ------
    NotApplicable
        If all samples are on kinks.
    """
    near = facts.near_kinks
    if parameters:
        near = near | facts.near_parameter_kinks.to(near.device)
    rows = (~near).nonzero()[:, 0]
    assume(len(rows) > 0, "some sample is off the kinks", f"all {len(facts.x)} are on kinks")
    chosen = rows[evenly_spaced(len(rows), limit)].tolist()
    return (Sample(row, facts, len(chosen)) for row in chosen)


def vectors(facts: Facts) -> Tensor:
    """Return the samples as vectors, (n, d); raises NotApplicable for class indices and tokens.

    Examples
    --------
    >>> import bnrank, torch
    >>> vectors(Facts(bnrank.MLP([2, 1]), torch.ones(3, 2))).shape
    torch.Size([3, 2])
    """
    assume(facts.x.is_floating_point(), "the inputs are vectors", f"dtype {facts.x.dtype}")
    return facts.x.flatten(1)


def counted_values(facts: Facts, row: int) -> Tensor:
    """Return lower bounds on those singular values of Jf at a sample that count for its rank, descending.

    A rounding error of 1e-17 is not small when raised to the power 2/L, so the rounding error is subtracted.

    Examples
    --------
    >>> import bnrank, torch
    >>> net = bnrank.networks.from_layers([torch.diag(torch.tensor([2.0, 0.0]))])
    >>> [round(v, 9) for v in counted_values(Facts(net, torch.ones(1, 2)), 0).tolist()]
    [2.0]
    """
    _, error, _ = rounded(facts.chain, facts.x[row].flatten())
    values = linalg.counted((facts.jacobian_values[row] - error).clamp(min=0.0), facts.rtol)
    return values[values > 0]
