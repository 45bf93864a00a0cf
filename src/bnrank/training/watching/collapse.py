"""When representations count as collapsed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bnrank._core import validation


class CollapseError(RuntimeError):
    """Representations have collapsed; raised by `Watch.step` if its `Collapse` has ``stop``.

    Attributes
    ----------
    layers : dict of str to int
        Collapsed layers, with the step since which they are below the threshold.
    """

    def __init__(self, message: str, layers: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.layers = dict(layers or {})


@dataclass(frozen=True)
class Collapse:
    """When the inputs of a layer, or the outputs of the network, count as collapsed.

    A layer has collapsed if the dimension of its centered inputs at 95 percent of their variance was below ``below`` in
    ``times`` consecutive measurements. Measurements without a dimension (NaN) are passed over.

    Parameters
    ----------
    below : float
        Least dimension that is not collapsed.
    times : int
        Number of consecutive measurements.
    layers : sequence of str, optional
        Names of layers, or "output". Default: all with at least ``below`` inputs. A layer whose inputs have few
        dimensions by design, such as a bottleneck or the network's own input, is best left out.
    stop : bool
        Whether training stops: in a plain loop `Watch.step` raises `CollapseError`; callbacks stop the trainer.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range.

    Examples
    --------
    >>> Collapse(below=3).times
    3
    """

    below: float = 2.0
    times: int = 3
    layers: Sequence[str] | None = None
    stop: bool = True

    def __post_init__(self) -> None:
        """Check the fields."""
        object.__setattr__(self, "below", validation.number(self.below, "below", 0.0, strict=True))
        object.__setattr__(self, "times", validation.integer(self.times, "times"))
        object.__setattr__(self, "stop", validation.flag(self.stop, "stop"))
        if self.layers is not None:
            names = validation.sequence(self.layers, "layers", "a sequence of names of layers")
            object.__setattr__(self, "layers", tuple(validation.text(name, "layers") for name in names))


@dataclass
class Detector:
    """The consecutive measurements in which layers were below the threshold."""

    rule: Collapse
    since: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    collapsed: dict[str, int] = field(default_factory=dict)

    def update(self, step: int, rows: Mapping[str, Mapping[str, float]]) -> dict[str, int]:
        """Take the rows of one measurement by layer; return the layers that have collapsed just now, since which step.

        Examples
        --------
        >>> detector = Detector(Collapse(below=2, times=2))
        >>> low = {"0": {"dimension_95": 1.0, "units": 8.0}}
        >>> detector.update(10, low), detector.update(20, low), detector.update(30, low)
        ({}, {'0': 10}, {})
        """
        new = {}
        for name, row in rows.items():
            value, units = row.get("dimension_95", math.nan), row.get("units", math.nan)
            if math.isnan(value):
                continue
            watched = units >= self.rule.below if self.rule.layers is None else name in self.rule.layers
            if not watched or value >= self.rule.below:
                self.counts.pop(name, None)
                self.collapsed.pop(name, None)
                continue
            self.counts[name] = self.counts.get(name, 0) + 1
            if self.counts[name] == 1:
                self.since[name] = step
            if self.counts[name] >= self.rule.times and name not in self.collapsed:
                new[name] = self.collapsed[name] = self.since[name]
        return new
