"""The change of the output that a replacement makes, and fine-tuning that reduces it."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bnrank.discovery.compression.parts import Parts, is_linear, run, trace

Samples = tuple[Tensor, Callable[[Tensor], Tensor], Tensor]

PROBES = 24  # random directions of the output for the metric, where there are more outputs


@dataclass(frozen=True)
class Change:
    """The difference of the outputs of two networks over N samples.

    Attributes
    ----------
    relative : float
        ||f^(X) - f(X)||_F / ||f(X)||_F.
    centered : float
        ||f^(X) - f(X)||_F / ||f(X) - mean f(X)||_F, not smaller; infinite where f is constant on the samples and f^ is
        not the same constant.
    worst : float
        max_i ||f^(x_i) - f(x_i)|| / (root mean square over i of ||f(x_i)||).
    decisions : float
        Fraction of the samples whose largest output is another one; NaN for a single output.
    samples : int
        N.
    """

    relative: float
    centered: float
    worst: float
    decisions: float
    samples: int


def change(before: Tensor, after: Tensor) -> Change:
    """Return the difference of outputs, (N, ...) both.

    Examples
    --------
    >>> found = change(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([[3.0, 0.0], [0.0, 3.0]]))
    >>> found.relative, round(found.worst, 3), found.decisions
    (0.2, 0.283, 0.0)
    """
    before, after = before.flatten(1).double(), after.flatten(1).double()
    n = len(before)
    each = (after - before).norm(dim=1)
    size, spread = float(before.norm()), float((before - before.mean(0)).norm())
    total = float(each.norm())
    decisions = float("nan")
    if before.shape[1] > 1:
        decisions = float((before.argmax(1) != after.argmax(1)).double().mean())
    centered = ratio(total, spread if spread > 1e-12 * size else 0.0)
    worst = ratio(float(each.max()) * math.sqrt(n), size)
    return Change(ratio(total, size), centered, worst, decisions, n)


def ratio(part: float, whole: float) -> float:
    """Return part / whole; where the whole is 0, it is 0 if the part is too, and else infinite."""
    if whole > 0:
        return part / whole
    return 0.0 if part == 0 else math.inf


class Judge:
    """The change of the module's output when a segment is replaced, on the samples that decide.

    Parameters
    ----------
    fitted, selected : tuple of (Tensor, callable, Tensor)
        For the samples of the fits and for those that judge them: the input of the segment, the map from its output to
        the module's, and the module's original output.
    given : Tensor
        The module's output on the given samples of both, (N, outputs), without interpolated points.
    """

    def __init__(self, fitted: Samples, selected: Samples, given: Tensor) -> None:
        self.x, self.rest, self.f = fitted
        self._selected = selected
        self._metrics: tuple[Sequence[nn.Module], dict[int, Tensor]] | None = None  # of the latest parts
        self._trace: tuple[Sequence[nn.Module], list[Tensor]] | None = None
        self.scale = _spread(self.f)
        """Root mean square distance of the fitted outputs from their mean; their size where they are constant."""
        self._scale_given = _spread(given)

    def __call__(self, parts: Sequence[nn.Module]) -> float:
        """Return the change of the output relative to its spread: the larger of both samples' changes.

        For the samples that judge, a standard error is added to the mean square, and the spread is that of the given
        samples: interpolated points may spread much more.
        """
        with torch.no_grad():
            on_fitted = self._squares(self.x, self.rest, self.f, parts)
            on_selected = self._squares(*self._selected, parts)
        error = float(on_selected.std()) / math.sqrt(len(on_selected)) if len(on_selected) > 1 else 0.0
        fitted = math.sqrt(float(on_fitted.mean())) / self.scale
        selected = math.sqrt(float(on_selected.mean()) + error) / self._scale_given
        return max(fitted, selected) if math.isfinite(fitted) and math.isfinite(selected) else math.inf

    @staticmethod
    def _squares(x: Tensor, rest: Callable[[Tensor], Tensor], f: Tensor, parts: Sequence[nn.Module]) -> Tensor:
        return (rest(run(parts, x)) - f).flatten(1).square().sum(1)

    def metrics(self, parts: Sequence[nn.Module]) -> dict[int, Tensor]:
        """Return the metric of the output at every linear part, by index.

        G^{1/2} (n, n), symmetric, with G = mean over samples of J^T J, J the Jacobian from there to the output, so that
        the root mean square of G^{1/2} dz is the change of the output to first order. For convolutions n is the number
        of channels, and J^T J is summed over places. With many outputs J^T J is estimated in random directions.
        """
        if self._metrics is None or self._metrics[0] is not parts:
            self._metrics = parts, self._measured(parts)
        return self._metrics[1]

    def _measured(self, parts: Sequence[nn.Module]) -> dict[int, Tensor]:
        places = [i for i, part in enumerate(parts) if is_linear(part)]
        value, leaves = self.x.detach().clone(), []
        with torch.enable_grad():
            for i, part in enumerate(parts):
                value = part(value)
                if i in places:
                    leaves.append(value.requires_grad_(True))
                    value = leaves[-1].clone()  # the next part may work in place
            out = self.rest(value).flatten(1)
        n = out.shape[1]
        if n <= PROBES:
            directions = torch.eye(n).to(out)
        else:
            signs = torch.randint(0, 2, (PROBES, n), generator=torch.Generator().manual_seed(0))
            directions = ((2.0 * signs - 1) / math.sqrt(PROBES)).to(out)
        grams: dict[int, Tensor] = {}
        for direction in directions:
            with torch.enable_grad():
                along = (out @ direction).sum()
            found = torch.autograd.grad(along, leaves, retain_graph=True, allow_unused=True)
            for place, gradient in zip(places, found, strict=True):
                if gradient is not None:
                    rows = channel_rows(parts[place], gradient)
                    grams[place] = grams.get(place, 0) + rows.T @ rows
        metrics = {}
        for place, gram in grams.items():
            values, vectors = torch.linalg.eigh(gram / len(self.x))
            metrics[place] = vectors * values.clamp(min=0).sqrt() @ vectors.T
        return metrics

    def trace(self, parts: Sequence[nn.Module]) -> list[Tensor]:
        """Return the input of the segment and the output of each part, on the samples of the fits."""
        if self._trace is None or self._trace[0] is not parts:
            with torch.no_grad():
                self._trace = parts, trace(parts, self.x)
        return self._trace[1]


def _spread(outputs: Tensor) -> float:
    """Return the root mean square distance of outputs from their mean; their size where they are constant."""
    outputs = outputs.flatten(1)
    spread = (outputs - outputs.mean(0)).square().sum(1).mean()
    size = outputs.square().sum(1).mean()
    return math.sqrt(float(spread if spread > 1e-24 * size else size)) or 1.0


def channel_rows(part: nn.Module, value: Tensor) -> Tensor:
    """Return the output of a linear part as rows, one per sample and position: (rows, neurons or channels)."""
    if isinstance(part, nn.Linear):
        return value.reshape(-1, value.shape[-1])
    return value.movedim(1, -1).reshape(-1, value.shape[1])


INNER = 10  # iterations of L-BFGS between two evaluations
PATIENCE = 4  # evaluations without improvement


def tuned(judge: Judge, parts: Parts, steps: int) -> tuple[Parts, float]:
    """Return parts with the smallest mean squared difference of the outputs over the samples of the fits, by L-BFGS.

    Parameters
    ----------
    judge : Judge
        The best parameters by its measure are kept, so that the change never grows.
    parts : tuple of torch.nn.Module
        They are not changed.
    steps : int
        Largest number of iterations.

    Returns
    -------
    tuple of torch.nn.Module
        Copies with other parameters.
    float
        Their change.
    """
    work = tuple(copy.deepcopy(part) for part in parts)
    best, change, idle = parts, judge(parts), 0
    parameters = [p.requires_grad_(True) for part in work for p in part.parameters()]
    if not parameters:
        return best, change
    optimizer = torch.optim.LBFGS(parameters, max_iter=INNER, history_size=20, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (judge.rest(run(work, judge.x)) - judge.f).flatten(1).square().sum(1).mean() / judge.scale**2
        loss.backward()
        return loss

    for _ in range(0, steps, INNER):
        with torch.enable_grad():
            optimizer.step(closure)
        found = judge(work)
        idle += 1
        if found < change:
            best, change, idle = tuple(copy.deepcopy(part) for part in work), found, 0
        if idle >= PATIENCE:
            break
    for part in best:
        for p in part.parameters():
            p.grad = None
    return best, change
