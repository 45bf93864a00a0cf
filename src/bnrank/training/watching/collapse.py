"""When representations count as collapsed, or are not finite."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bnrank._core import validation
from bnrank.training.watching.divergence import KINDS


class CollapseError(RuntimeError):
    """Representations have collapsed or are not finite; raised by `Watch.step` if its `Collapse` has ``stop``.

    Attributes
    ----------
    layers : dict of str to int
        Layers that have collapsed or are not finite, with the step since which they have or are.
    """

    def __init__(self, message: str, layers: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.layers = dict(layers or {})


@dataclass(frozen=True)
class Collapse:
    """When the inputs of a layer, or the outputs of the network, count as collapsed.

    A layer has collapsed if the dimension of its centered inputs at 95 percent of their variance was below ``below`` in
    ``times`` consecutive measurements. Measurements without a dimension, as of fewer than 10 samples that vary in all
    dimensions in which so few can, are passed over; a warning says if all layers are without one for ``times``
    measurements, or two where ``times`` is 1.

    A layer whose weights or inputs are NaN or infinite in ``times`` consecutive measurements also stops the training,
    with a message that says so. Where the output is infinite by design, as for masked logits, name the other
    ``layers``.

    Parameters
    ----------
    below : float
        Least dimension that is not collapsed.
    times : int
        Number of consecutive measurements, of a collapse and of values that are not finite.
    layers : sequence of str, optional
        Names of layers, or "output". Default: all with at least ``below`` inputs and, for values that are not finite,
        all. A layer whose inputs have few dimensions by design, such as a bottleneck or the network's own input, is
        best left out.
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
    """The consecutive measurements in which layers were below the threshold, or not finite.

    Attributes
    ----------
    rule : Collapse
        The threshold, the layers, and how many consecutive measurements count.
    collapsed, nonfinite : dict of str to int
        Layers that were so in ``rule.times`` measurements in a row, with the step since which they are.
    unseen : int
        Number of measurements in a row in which no watched layer had a dimension or values that are not finite.
    """

    rule: Collapse
    collapsed: dict[str, int] = field(default_factory=dict)
    nonfinite: dict[str, int] = field(default_factory=dict)
    unseen: int = 0
    _runs: dict[str, tuple[str, int, int]] = field(default_factory=dict)  # state, step since which, measurements

    @property
    def found(self) -> dict[str, int]:
        """Layers that have collapsed or are not finite, with the step since which they have or are."""
        return self.collapsed | self.nonfinite

    def update(self, step: int, rows: Mapping[str, Mapping[str, float]]) -> dict[str, int]:
        """Take the rows of one measurement by layer; return the layers found just now, with the step since which.

        Examples
        --------
        >>> detector = Detector(Collapse(below=2, times=2))
        >>> low = {"0": {"dimension_95": 1.0, "units": 8.0}}
        >>> detector.update(10, low), detector.update(20, low), detector.update(30, low)
        ({}, {'0': 10}, {})
        """
        new = {}
        states = {name: self._state(name, row) for name, row in rows.items()}
        named = [state for name, state in states.items() if self.rule.layers is None or name in self.rule.layers]
        self.unseen = self.unseen + 1 if all(state in (None, "finite") for state in named) else 0
        for name, state in states.items():
            if state is None:
                continue
            before, since, count = self._runs.get(name, ("", step, 0))
            if state == "finite":  # without a dimension, which neither begins nor ends a collapse
                if before != "not finite":
                    continue
                state = ""
            if state != before:
                since, count = step, 0
                self.collapsed.pop(name, None)
                self.nonfinite.pop(name, None)
            self._runs[name] = state, since, count + 1
            if state and count + 1 == self.rule.times:
                (self.collapsed if state == "collapsed" else self.nonfinite)[name] = new[name] = since
        return new

    def reason(self, step: int, new: Mapping[str, int]) -> str:
        """Return in words what :meth:`update` has found at a step."""
        rule = self.rule
        during = f"in {rule.times} consecutive measurements" if rule.times > 1 else "in this measurement"
        parts = []
        if names := _since({name: since for name, since in new.items() if name in self.nonfinite}):
            parts.append(f"not finite at step {step}: weights or activations are NaN or infinite {during}, at {names}")
        if names := _since({name: since for name, since in new.items() if name in self.collapsed}):
            fewer = f"fewer than {rule.below:g} dimensions at 95 percent of variance"
            parts.append(f"collapsed at step {step}: the activations at {names} vary in {fewer} {during}")
        return "; ".join(parts)

    def blindness(self, step: int) -> str:
        """Return in words that a collapse cannot be seen, at the measurement at which this is certain; else nothing."""
        if self.unseen != max(self.rule.times, 2):
            return ""
        return (
            f"no collapse can be seen: in {self.unseen} measurements up to step {step} no watched layer had a "
            "dimension; it takes activations of at least 10 samples (see notes; x= gives a fixed batch)"
        )

    def _state(self, name: str, row: Mapping[str, float]) -> str | None:
        """Return "collapsed", "not finite" or, of a layer that is neither or not watched, "".

        "finite" without a dimension; None where nothing is known.
        """
        named = self.rule.layers is None or name in self.rule.layers
        if named and any(row.get(quantity, 0) > 0 for quantity in KINDS):
            return "not finite"
        value, units = row.get("dimension_95", math.nan), row.get("units", math.nan)
        if math.isnan(value):
            return "finite" if any(row.get(quantity) == 0 for quantity in KINDS) else None
        wide = self.rule.layers is not None or units >= self.rule.below
        return "collapsed" if named and wide and value < self.rule.below else ""


def _since(layers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} (since step {step})" for name, step in layers.items())
