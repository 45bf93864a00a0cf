"""The search for a stationary point, and for a local minimum: its stages, one within the other."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from bnrank.measures import subgradients
from bnrank.measures.critical_points import BIRTH_RTOL, Birth, of_layers
from bnrank.measures.second_order import Array, Evaluation, Problem
from bnrank.measures.subgradients import KINK_RTOL
from bnrank.training.finishing import corners, creases, frames, pieces, quasi, shrinking
from bnrank.training.finishing.kinks import Kinks, at_zero, of_smoothed
from bnrank.training.finishing.stages import Stages, State

# eps in units of the root mean square preactivation of the layer
SMOOTHING = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 1e-6)
SHRINKING = 1e-3  # down to this eps, weak neurons are removed and parallel ones merged
PREDICTED = 3e-4  # from this eps on, preactivations at kinks are reduced with it
TRIED = 1e-5  # from this eps on, the kinks are identified and the search with them is tried
SMALLEST = 1e-100  # least root mean square preactivation that is assumed
FIRST = 1e-3  # relative gradient at which neurons are no longer removed at the first eps
LOOSE = 1e-5  # relative gradient at which eps is reduced
EVERY, ROUNDS = 300, 40  # iterations of L-BFGS between reductions of the network, and the number of rounds
GAIN = 1e-4  # relative decrease of the loss per round below which the smoothing is reduced
PIECES = 300  # steps of the search with all kinks together
SINGLY = 3000  # steps of the search with one kink at a time, from where that ended
DENSE = 12_000  # largest number of parameters for exact Hessians
DEAD = 1e-6  # relative weight of neurons that are removed, and distance of parallel ones, when kinks are known
NEAR = 1e-5  # preactivations that count as 0 after neurons were removed
RESTARTS = (1e-4, 3e-3)  # eps from which a search that ended early is repeated
PROGRESS = 1e-12  # least relative decrease of the loss by a new neuron
BIRTHS = 60  # largest number of neurons added
OUT_OF_TIME = "out of time"
NO_SIZE = "no size that was tried does"


class Search:
    """The search, with its time limit."""

    def __init__(
        self,
        problem: Problem,
        rtol: float,
        max_minutes: float | None,
        seed: int,
        births: bool,
        widths: Sequence[int],
        tell: Any,
        stages: Stages | None = None,
    ) -> None:
        self.problem, self.rtol, self.seed, self.births = problem, rtol, seed, births
        self.widths, self.tell = widths, tell
        self.began, self.limit, self.born = time.perf_counter(), max_minutes, 0
        self.stages, self.over = stages or Stages(), False

    def late(self) -> bool:
        """Return whether the time is over."""
        if not self.over and self.limit is not None and time.perf_counter() - self.began > 60 * self.limit:
            self.over = True
            self.stages.write()
        return self.over

    def note(self, **state: Any) -> None:
        """Note the state of the stage, unless the time is over: then all stages are left."""
        if not self.over:
            self.stages.note(**state)

    def run(self, start: list[Array]) -> tuple[list[Array], str]:
        """Return the layers of lowest loss that were reached, and why the search ended."""
        failed: dict[int, str]
        arrived, failed = self.arrived(start), {}
        with self.stages.stage("search") as known:
            if "born" in known:
                best, reason, self.born = known["layers"], known["reason"], known["born"]
                failed = {int(layer): why for layer, why in known["failed"].items()}
            elif arrived is not None:
                best, reason = arrived, "stationary"
            else:
                best, reason, accepted = self.begun(start, known)
                if not accepted:
                    return best, reason
            best, reason = self.bred(best, reason, failed)
        if failed:
            reason += f"; {next(iter(failed.values()))}"
        if self.late() and not reason.startswith("stationary"):
            reason = OUT_OF_TIME
        elif self.late() and self.births:
            reason = "stationary; out of time for new neurons"
        if arrived is not None and not self.born:
            best = start
        return best, reason

    def begun(self, start: list[Array], known: State) -> tuple[list[Array], str, bool]:
        """Return layers of lower loss, why the search for them ended, and whether their loss is lower."""
        if known:
            best, reason = known["layers"], known["reason"]
        else:
            best, reason = self.descended(start, shrink=True)
        if self.loss(best) > self.loss(start) and not self.late():
            self.note(layers=best, reason=reason)
            best, reason = self.descended(start, shrink=False)
        if self.loss(best) > self.loss(start):
            why = f"the loss could not be kept below that of the network given ({reason})"
            return shrinking.balanced(start), why, False
        zero = [np.zeros_like(layer) for layer in best]
        least = Evaluation(self.problem, zero)
        if reason != "stationary" and least.relative_gradient <= self.rtol and least.loss <= self.loss(best):
            best, reason = zero, "stationary"  # weights that shrink for ever
        return best, reason, True

    def bred(self, best: list[Array], reason: str, failed: dict[int, str]) -> tuple[list[Array], str]:
        """Return layers with neurons added that lower the loss.

        ``failed`` are the layers whose new neuron did not lead to a stationary point, and why.
        """

        def note() -> None:
            why = {str(layer): text for layer, text in failed.items()}
            self.note(layers=best, reason=reason, born=self.born, failed=why)

        note()
        while reason == "stationary" and self.births and self.born < BIRTHS and not self.late():
            note()
            birth = self.birth(best, failed)
            if birth is None:
                break
            found, ended = self.grown(best, birth)
            if ended == "stationary" and self.loss(found) < self.loss(best) * (1 - PROGRESS):
                best, self.born = found, self.born + 1
                failed.clear()
            else:
                failed[birth.layer] = _unused(self.loss(found) - self.loss(best), ended)
        return best, reason

    def arrived(self, start: list[Array]) -> list[Array] | None:
        """Return the live part of the given network if it is stationary, or None."""
        try:
            found = subgradients.least(self.problem, start)
        except ValueError:  # too many kinks
            return None
        enough = found.best.relative_gradient <= self.rtol and all(len(layer) for layer in found.layers)
        return found.layers if enough else None

    def loss(self, layers: Sequence[Array]) -> float:
        """Return C + lambda ||theta||^2."""
        return Evaluation(self.problem, layers).loss

    def smoothing(self, layers: Sequence[Array], eps: float) -> Array:
        """Return eps times the root mean squares of the preactivations of the hidden layers."""
        squares = [float((z * z).mean()) for z in Evaluation(self.problem, layers).z[:-1]]
        return np.array([eps * max(np.sqrt(square), SMALLEST) for square in squares])

    def descended(self, start: Sequence[Array], *, shrink: bool) -> tuple[list[Array], str]:
        """Return a stationary point reached with L-BFGS and then Newton's method."""
        problem, last = self.problem, np.inf
        with self.stages.stage("shrinking" if shrink else "whole") as known:
            layers = shrinking.tidy(start) if shrink else shrinking.tidy(start, 0.0, 0.0)
            layers = known.get("layers", layers)
            for number in range(known.get("round", 0), ROUNDS):
                self.note(layers=layers, round=number)
                sizes = [len(layer) for layer in layers]
                smooth = self.smoothing(layers, SMOOTHING[0])
                if shrink:
                    layers = shrinking.thinned(problem, layers, smooth)
                layers = quasi.descend(problem, layers, smooth, EVERY, self.late)
                at = Evaluation(problem, layers, smooth)
                self.tell(number, f"finishing: loss {at.loss:.8g}, {_count(layers)} parameters")
                if shrink:
                    layers = shrinking.tidy(layers)
                same = [len(layer) for layer in layers] == sizes
                if self.late() or at.relative_gradient <= FIRST or (same and at.loss > last * (1 - GAIN)):
                    break
                last = at.loss
            self.note(layers=layers, round=ROUNDS)
            if _count(layers) > DENSE:
                return layers, f"more than {DENSE} live parameters are left, too many for exact Hessians"
            return self.followed(layers, SMOOTHING[0], shrink=shrink)

    def followed(self, layers: list[Array], largest: float, *, shrink: bool) -> tuple[list[Array], str]:
        """Return a stationary point reached by reducing the smoothing, and by a search with the kinks that are left."""
        problem, levels = self.problem, [eps for eps in SMOOTHING if eps <= largest]
        before = self.loss(layers)
        with self.stages.stage("followed") as known:
            at: State = {"layers": layers, "damping": 0.0, "number": 0, "begun": False, "lowered": False}
            at |= {"best": [], "stationary": []} | known
            for number in range(at["number"], len(levels)):
                eps = levels[number]
                at["number"] = number
                if not at["lowered"]:
                    self.lowered(at, eps, levels[number - 1] if number else largest, shrink=shrink)
                if self.late():
                    break
                if eps > TRIED:
                    continue
                at["lowered"] = True
                self.keep(at, "best", at["layers"])
                self.note(**at)
                layers = at["layers"]
                corner = self.cornered(layers, of_smoothed(problem, layers, self.smoothing(layers, eps)))
                at["lowered"] = False
                if corner.reason == "stationary":
                    if self.loss(corner.layers) <= self.loss(layers):
                        return corner.layers, corner.reason
                    # The smoothed point has a lower loss: some of its kinks are none. A smaller eps tells them apart.
                    if self.loss(corner.layers) <= before:
                        self.keep(at, "stationary", corner.layers)
                else:
                    self.keep(at, "best", corner.layers)
                    at["layers"] = at["best"]
                if self.late():
                    break
            if at["stationary"]:
                return at["stationary"], "stationary"
            if self.late():
                return at["best"] or at["layers"], OUT_OF_TIME
            self.note(**at | {"number": len(levels)})
            corner = self.singly(at["best"])
            if corner.reason == "stationary" or self.loss(corner.layers) < self.loss(at["best"]):
                return corner.layers, corner.reason
            return at["best"], corner.reason

    def keep(self, at: State, name: str, layers: list[Array]) -> None:
        """Keep layers in a state if their loss is lower than that of those kept before."""
        if not at[name] or self.loss(layers) < self.loss(at[name]):
            at[name] = layers

    def lowered(self, at: State, eps: float, before: float, *, shrink: bool) -> None:
        """Minimize the loss with the smoothing eps, which was larger before, from the layers of the state."""
        layers, predict = at["layers"], eps < before and eps <= PREDICTED and not at["begun"]
        self.note(**at)
        if predict:
            layers = creases.nearer(self.problem, layers, self.smoothing(layers, before), eps / before)
        smooth = at["smooth"] if at["begun"] else self.smoothing(layers, eps)

        def note(layers: list[Array], damping: float) -> None:
            self.note(**at | {"layers": layers, "damping": damping, "begun": True, "smooth": smooth})

        layers, damping = frames.descend(self.problem, layers, smooth, LOOSE, at["damping"], self.late, note)
        loss = Evaluation(self.problem, layers, smooth).loss
        self.tell(40, f"finishing: loss {loss:.8g}, smoothing {eps:g}")
        if shrink and not self.late():
            layers = shrinking.tidy(layers) if eps >= SHRINKING else shrinking.tidy(layers, DEAD, DEAD)
        at |= {"layers": layers, "damping": damping, "begun": False}

    def cornered(self, layers: Sequence[Array], kinks: Kinks) -> pieces.Corner:
        """Return where the search with kinks ends, without neurons that died on the way."""
        with self.stages.stage("corner") as known:
            if known:
                corner = pieces.Corner(known["layers"], _kinks(known), known["residual"], known["reason"])
            else:
                corner = self.along("along", layers, kinks)
            less = shrinking.tidy(corner.layers, DEAD, DEAD)
            if [len(layer) for layer in less] != [len(layer) for layer in corner.layers]:
                ended = {"residual": corner.residual, "reason": corner.reason}
                self.note(layers=corner.layers, **_arrays(corner.kinks), **ended)
                without = self.along("without", less, at_zero(self.problem, less, NEAR))
                no_worse = self.loss(without.layers) <= self.loss(corner.layers) * (1 + PROGRESS)
                if no_worse and (without.reason == "stationary" or corner.reason != "stationary"):
                    corner = without
        loss = self.loss(corner.layers)
        self.tell(80, f"finishing: loss {loss:.8g}, {len(corner.kinks)} kinks, {corner.reason}")
        return corner

    def along(self, name: str, layers: Sequence[Array], kinks: Kinks) -> pieces.Corner:
        """Return where a search with kinks ends."""

        def note(layers: list[Array], kinks: Kinks) -> None:
            self.note(layers=layers, **_arrays(kinks))

        with self.stages.stage(name) as known:
            if known:
                layers, kinks = known["layers"], _kinks(known)
            return pieces.search(self.problem, layers, kinks, self.rtol / 3, PIECES, self.late, note)

    def singly(self, layers: list[Array]) -> pieces.Corner:
        """Return where the search with one kink at a time ends."""

        def note(layers: list[Array], kinks: Kinks) -> None:
            self.note(layers=layers, **_arrays(kinks))

        with self.stages.stage("singly") as known:
            kinks = at_zero(self.problem, layers, KINK_RTOL)
            if known:
                layers, kinks = known["layers"], _kinks(known)
            corner = corners.search(self.problem, layers, kinks, self.rtol / 10, SINGLY, self.late, note)
        self.tell(90, f"finishing: loss {self.loss(corner.layers):.8g}, {len(corner.kinks)} kinks, {corner.reason}")
        return corner

    def birth(self, layers: list[Array], without: Collection[int]) -> Birth | None:
        """Return the new neuron, not in some layers, that lowers the loss most for its norm, or None if none does."""
        wide = _with_room(layers, self.widths)
        found = of_layers(self.problem, wide, self.rtol, KINK_RTOL, births=True, seed=self.seed)
        better = [birth for birth in found.births if birth.lower > 1 + BIRTH_RTOL and birth.layer not in without]
        return max(better, key=lambda birth: birth.lower, default=None)

    def grown(self, layers: list[Array], birth: Birth) -> tuple[list[Array], str]:
        """Return a stationary point reached from layers with the neuron added.

        The kinks are kept while the neuron grows: the loss falls with the square of its size only along them. The
        largest size for which it falls is where the search begins.
        """
        number, width, base = birth.layer - 1, len(layers[birth.layer - 1]), self.loss(layers)
        kinks = at_zero(self.problem, layers, KINK_RTOL)
        live = [np.logical_or(low.any(1), high[:, : len(low)].any(0)) for low, high in itertools.pairwise(layers)]
        incoming = _spread(birth.incoming, live[number - 1] if number else np.ones(0, dtype=bool))
        outgoing = _spread(birth.outgoing, live[number + 1] if number + 1 < len(live) else np.ones(0, dtype=bool))
        best: list[Array] | None = None
        for size in 2.0 ** np.arange(1, -12, -1):
            wider = list(layers)
            wider[number] = np.concatenate([layers[number], size * incoming[None]])
            high, column = layers[number + 1], size * outgoing[:, None]
            wider[number + 1] = np.concatenate([high[:, :width], column, high[:, width:]], axis=1)
            there = creases.onto(self.problem, wider, kinks)
            if self.loss(there) < base:
                base, best = self.loss(there), there
        if best is None:
            return layers, NO_SIZE
        with self.stages.stage("grown") as known:
            if known:
                found, reason = known["layers"], known["reason"]
            else:
                corner = self.cornered(best, kinks)
                found, reason = corner.layers, corner.reason
            for number in range(known.get("number", 0), len(RESTARTS)):
                if reason == "stationary" or self.late():
                    break
                self.note(layers=found, reason=reason, number=number)
                tried, ended = self.followed(found, RESTARTS[number], shrink=True)
                lower = self.loss(tried) < self.loss(found)
                if lower or (ended == "stationary" and self.loss(tried) < self.loss(layers)):
                    found, reason = tried, ended
        return found, reason


def _count(layers: Sequence[Array]) -> int:
    """Return the number of parameters."""
    return sum(layer.size for layer in layers)


def _arrays(kinks: Kinks) -> State:
    """Return kinks as arrays."""
    return {"places": np.stack(kinks.places), "slopes": kinks.slopes}


def _kinks(state: State) -> Kinks:
    """Return kinks from their arrays."""
    layers, neurons, samples = state["places"]
    return Kinks(layers, neurons, samples, state["slopes"])


def _unused(change: float, ended: str) -> str:
    """Return why a new neuron was not added: the loss after the search from it, less that before, and its end."""
    if ended == NO_SIZE:
        return f"by its derivative a new neuron lowers the loss, but {NO_SIZE}"
    if ended == "stationary":
        return "a new neuron lowers the loss, but the search from there ended at a stationary point that is no lower"
    where = "lower" if change < 0 else "not lower"
    return f"a new neuron lowers the loss, but the search from there did not arrive ({ended}; the loss is {where})"


def _spread(weights: Array, live: Array) -> Array:
    """Return weights to live neurons (and further ones after them) with zeros for the dead ones."""
    result = np.zeros(len(live) + len(weights) - int(live.sum()))
    result[np.concatenate([np.flatnonzero(live), np.arange(len(live), len(result))])] = weights
    return result


def _with_room(layers: Sequence[Array], widths: Sequence[int]) -> list[Array]:
    """Return the layers with one zero neuron in every hidden layer that has room for one."""
    result = copy.copy(list(layers))
    for number, width in enumerate(widths):
        have = len(result[number])
        if have < width:
            result[number] = np.concatenate([result[number], np.zeros((1, result[number].shape[1]))])
            high = result[number + 1]
            column = np.zeros((len(high), 1))
            result[number + 1] = np.concatenate([high[:, :have], column, high[:, have:]], axis=1)
    return result
