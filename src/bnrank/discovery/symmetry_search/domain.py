"""Where samples lie, column by column: ranges, and the values of columns that take few. Images must lie there, too."""

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LEVELS = 10  # a column with more values is continuous
REPEATS = 5  # rows per value of a column that takes few values, on average
BETWEEN = 0.05  # largest distance to a value, in units of the smallest distance between values
ROUNDING = 1e-9  # of the width of a range
MOVED = 0.03  # columns that move by less, relative to the one that moves most in units of spread, do not count
REACHED = 0.2  # smallest share of the samples with images on the values, for steps from value to value


@dataclass(frozen=True)
class Domain:
    """The range of every column, and the values of columns that take few of them.

    Attributes
    ----------
    low, high : Tensor
        Smallest and largest value, (d,).
    levels : tuple of Tensor or None
        The values of a column with 2 to 10 values (at least five rows per value on average); None for others.
    """

    low: Tensor
    high: Tensor
    levels: tuple[Tensor | None, ...]

    @property
    def stepped(self) -> list[int]:
        """The columns that take few values."""
        return [i for i, levels in enumerate(self.levels) if levels is not None]

    def within(self, images: Tensor) -> Tensor:
        """Return whether every entry of images, (N, d), lies in the range of its column."""
        slack = ROUNDING * (self.high - self.low)
        return (images >= self.low - slack) & (images <= self.high + slack)

    def inside(self, images: Tensor) -> Tensor:
        """Return whether every entry of images, (N, d), lies in the range of its column, or on one of its values."""
        found = self.within(images)
        for i in self.stepped:
            levels = self._values(i)
            nearest = (images[:, i, None] - levels).abs().min(1).values
            found[:, i] = nearest <= BETWEEN * levels.diff().min()
        return found

    def share(self, x: Tensor, images: Tensor) -> float:
        """Return the share of the samples that a map moves whose images are inside, the smallest of all columns."""
        slack = ROUNDING * (self.high - self.low)
        moves, inside = (images - x).abs() > slack, self.inside(images)
        counts = moves.sum(0)
        shares = (moves & inside).sum(0) / counts.clamp(min=1)
        return float(shares[counts > 0].min()) if bool(counts.any()) else 1.0

    def reached(self, x: Tensor, direction: Tensor, spread: Tensor) -> bool:
        """Return whether steps along a direction (d,) lead a fifth of the samples from values to values.

        Directions that move no column of few values lead to images in the ranges by short steps.
        """
        sizes = (direction / spread).abs()
        step = torch.where(sizes > MOVED * sizes.max(), direction, 0.0)
        moved = [i for i in self.stepped if float(step[i])]
        if not moved:
            return True
        levels = self._values(moved[0])
        gaps = torch.unique((levels[:, None] - levels[None]).flatten())
        images = (x + float(gap) / step[moved[0]] * step for gap in gaps if float(gap))
        return any(float(self.inside(image).all(1).double().mean()) >= REACHED for image in images)

    def _values(self, column: int) -> Tensor:
        levels = self.levels[column]
        assert levels is not None
        return levels


def read_domain(x: Tensor) -> Domain:
    """Return the domain of samples (N, d).

    Examples
    --------
    >>> x = torch.stack([torch.arange(20.0) % 2, torch.linspace(1.0, 3.0, 20)], 1)
    >>> domain = read_domain(x)
    >>> domain.stepped, domain.share(x, -x)
    ([0], 0.0)
    >>> exchanged = torch.stack([1 - x[:, 0], x[:, 1]], 1)
    >>> domain.share(x, exchanged)
    1.0
    """
    levels: list[Tensor | None] = []
    for column in x.T:
        values = torch.unique(column)
        few = 2 <= len(values) <= MAX_LEVELS and len(column) >= REPEATS * len(values)
        levels.append(values if few else None)
    return Domain(x.min(0).values, x.max(0).values, tuple(levels))
