"""When representations count as collapsed, or are not finite."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bnrank._core import validation
from bnrank.training.watching.quantities import NONFINITE

STATES = {
    "not finite": "weights or activations are NaN or infinite",
    "collapsed": "the activations vary in fewer than {below:g} dimensions at 95 percent of variance",
}
"""What stops a training, in words."""


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
    measurements.

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
    """The consecutive measurements in which layers had collapsed, or were not finite.

    Attributes
    ----------
    rule : Collapse
        The threshold, the layers, and how many consecutive measurements count.
    blind : int
        Measurements in a row in which no watched layer had a dimension or values that are not finite.
    """

    rule: Collapse
    blind: int = 0
    _runs: dict[str, dict[str, tuple[int, int]]] = field(default_factory=lambda: {state: {} for state in STATES})

    def since(self, state: str) -> dict[str, int]:
        """Return the layers that are "collapsed", or "not finite", with the step since which they are."""
        return {name: step for name, (step, count) in self._runs[state].items() if count >= self.rule.times}

    def update(self, step: int, rows: Mapping[str, Mapping[str, float]]) -> str:
        """Take the rows of one measurement by layer; return in words what is so since just now, or an empty text.

        Examples
        --------
        >>> detector = Detector(Collapse(below=2, times=2))
        >>> low = {"0": {"dimension_95": 1.0, "units": 8.0}}
        >>> texts = [detector.update(step, low) for step in (10, 20, 30)]
        >>> [len(text) > 0 for text in texts], detector.since("collapsed")
        ([False, True, False], {'0': 10})
        """
        layers = rows if self.rule.layers is None else self.rule.layers
        states = {name: self._states(row) for name, row in rows.items() if name in layers}
        self.blind = 0 if any(state["collapsed"] is not None for state in states.values()) else self.blind + 1
        times = f"in {self.rule.times} consecutive measurements" if self.rule.times > 1 else "in this measurement"
        texts = []
        for kind, meaning in STATES.items():
            runs, new = self._runs[kind], []
            for name, state in states.items():
                since, count = runs.get(name, (step, 0))
                if state[kind]:
                    runs[name] = since, count + 1
                    new += [f"{name} (since step {since})"] if count + 1 == self.rule.times else []
                elif state[kind] is False:
                    runs.pop(name, None)
            if new:
                meaning = meaning.format(below=self.rule.below)
                texts.append(f"{kind} at step {step}: {meaning} {times}, at {', '.join(new)}")
        return "; ".join(texts)

    def _states(self, row: Mapping[str, float]) -> dict[str, bool | None]:
        """Return whether a layer is not finite, and whether it has collapsed; None where this is unknown."""
        counts = [row[name] for name in NONFINITE if name in row]
        lost = any(count > 0 for count in counts) if counts else None
        dimension = row.get("dimension_95", math.nan)
        wide = self.rule.layers is not None or row.get("units", math.nan) >= self.rule.below
        unknown = math.isnan(dimension) and not lost
        return {"not finite": lost, "collapsed": None if unknown else wide and dimension < self.rule.below}


def detector_of(rule: Any, what: Sequence[str], layers: Sequence[str]) -> Detector:
    """Return the detector of a rule on the layers of a network, of which ``what`` is measured."""
    rule = validation.kind(rule, "collapse", Collapse)
    validation.expect("activations" in what, "collapse", f"what={list(what)}", "'activations' in what")
    unknown = set(rule.layers or ()) - set(layers)
    validation.expect(not unknown, "collapse", f"layers {sorted(unknown)}", f"some of {list(layers)}")
    return Detector(rule)
