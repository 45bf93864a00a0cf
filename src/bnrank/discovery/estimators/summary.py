"""What a fit found, as text and as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bnrank.discovery.estimators.counting import Trial

__all__ = ["Summary"]


@dataclass(frozen=True)
class Summary:
    """Everything a page about a fit shows; ``print`` gives a page of text.

    Attributes
    ----------
    estimator, model : str
        Class, and "network", "linear" or "constant".
    n_components : int
        Number of components used.
    interval, undetermined, reason
        Of the count; see ``n_components_interval_``.
    bound : int
        Largest count that could be seen.
    rows : int
        Number of rows.
    inputs : tuple of str
        Names of the inputs.
    outputs : int
        Number of outputs.
    output_names : tuple of str
        Names of the outputs, or of the classes.
    ridge : float
        lambda, in the scale of training.
    score : float
        R^2 or accuracy on the rows fitted.
    held_out, held_out_error : ndarray
        Held-out loss with k = 0, 1, ... components and its standard error.
    stability : tuple of Trial
        Every network trained.
    spectrum : ndarray
        Standard deviations of the bottleneck representation before it was cut, descending.
    influence : ndarray
        Root mean square derivative of the outputs in each coordinate (scale of training).
    sensitivity : ndarray
        (k, d_in): root mean square of dz_j/dx_i times the standard deviation of x_i.
    n_input_directions, input_spectrum
        On how many combinations of the inputs y depends, and how much on each.
    coordinates, seen, predicted : ndarray
        Of at most 1,000 rows: z (rows, k), the outputs in the table, and those of the model.
    notes : tuple of str
        What was left out or cannot be said.
    """

    estimator: str
    model: str
    n_components: int
    interval: tuple[int, int]
    undetermined: bool
    reason: str
    bound: int
    rows: int
    inputs: tuple[str, ...]
    outputs: int
    output_names: tuple[str, ...]
    ridge: float
    score: float
    held_out: np.ndarray
    held_out_error: np.ndarray
    stability: tuple[Trial, ...]
    spectrum: np.ndarray
    influence: np.ndarray
    sensitivity: np.ndarray
    n_input_directions: int
    input_spectrum: np.ndarray
    coordinates: np.ndarray
    seen: np.ndarray
    predicted: np.ndarray
    notes: tuple[str, ...]

    @property
    def gap(self) -> float:
        """s_k / s_{k+1} of the spectrum; infinite where nothing is left, NaN without components."""
        k, s = self.n_components, self.spectrum
        if not 0 < k <= len(s):
            return float("nan")
        return float(s[k - 1] / s[k]) if k < len(s) and s[k] > 0 else float("inf")

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        low, high = self.interval
        sure = "undetermined" if self.undetermined else f"interval {low} to {high}"
        classes = len(self.output_names) > self.outputs
        out = f"{len(self.output_names)} classes" if classes else f"{self.outputs} outputs"
        yield f"{self.estimator}: {self.rows} rows, {len(self.inputs)} inputs, {out}"
        yield f"components: {self.n_components} ({sure}; at most {self.bound} could be seen), model: {self.model}"
        yield f"  {self.reason}"
        yield f"score on these rows: {round(self.score, 6) + 0.0:.3g}"
        yield f"y depends on {self.n_input_directions} linear combination(s) of the inputs"
        yield "held-out loss by number of components"
        shown = min(len(self.held_out), max(self.n_components, high) + 3)
        for k in range(shown):
            mark = " <-" if k == self.n_components else ""
            yield f"  {k:3d}  {self.held_out[k]:.4g} +- {self.held_out_error[k]:.2g}{mark}"
        if self.n_components:
            yield f"spectrum at the bottleneck: {_few(self.spectrum)}, gap {self.gap:.3g}"
            yield "coordinate  influence  moves most with"
            for j in range(self.n_components):
                order = np.argsort(-self.sensitivity[j])[:4]
                named = ", ".join(f"{self.inputs[i]} ({self.sensitivity[j, i]:.2g})" for i in order)
                yield f"  {j + 1:8d}  {self.influence[j]:9.3g}  {named}"
        if self.stability:
            yield f"networks (* in the running{self._depth_kept()})"
            yield "     ridge  depth  counts, one per fold or seed"
            for (ridge, depth), trials in self._by_setting().items():
                mark = "*" if trials[0].considered else " "
                yield f"  {mark} {ridge:.1e}  {depth:5d}  {' '.join(str(trial.count) for trial in trials)}"
        for note in self.notes:
            yield f"note: {note}"

    def _depth_kept(self) -> str:
        kept = [trial.depth for trial in self.stability if trial.considered]
        if self.model != "network" or not kept:
            return ""
        several = len({trial.depth for trial in self.stability if trial.fold is not None}) > 1
        return f"; depth {min(kept)} kept{', chosen by held-out rows' if several else ''}"

    def _by_setting(self) -> dict[tuple[float, int], list[Trial]]:
        table: dict[tuple[float, int], list[Trial]] = {}
        for trial in sorted(self.stability, key=lambda t: (t.depth, -t.ridge)):
            table.setdefault((trial.ridge, trial.depth), []).append(trial)
        return table


def _few(values: np.ndarray) -> str:
    return ", ".join(f"{value:.3g}" for value in values[:8]) + (" ..." if len(values) > 8 else "")
