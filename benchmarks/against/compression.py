"""Compression: the smallest network whose outputs are those of the trained one within a tolerance.

*Change* is ||f^(X) - f(X)||_F / ||f(X) - mean f(X)||_F on held-out X: relative to the spread of the outputs. Every
method is tried at several strengths, each with and without fine-tuning; of the outcomes that meet a target the one of
fewest parameters counts, and the network itself where none does. Which meet it is read off the held-out samples, for
all methods alike; the peers have 32 strengths, bnrank has a few tolerances. Fine-tuning is the same for all: 200 steps
of Adam to the outputs before, on the inputs that the methods have, at two step sizes of which the better on these
counts. Peers are fine-tuned at every third strength, where bisection leads. bnrank's own fine-tuning (``tune=200``,
L-BFGS) is a method besides. On heavy networks, of more than 10^7 multiply-adds, a peer stops at the first strength that
changes the outputs by more than half of their spread, and latency has fewer rounds.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.against import trials
from benchmarks.against.compression_cases import CASES, Trained
from benchmarks.against.compression_peers import PEERS, Peer, costs, find_strongest, fine_tuned, finished
from benchmarks.against.compression_tables import tables
from bnrank import compress
from bnrank.discovery import Timing
from bnrank.discovery.compression import latency
from bnrank.discovery.compression.certificate import change
from bnrank.discovery.compression.wholes import split_up

__all__ = ["cells", "measure", "tables"]

SEEDS, QUICK_SEEDS = 10, 2
TARGETS = (0.01, 0.02, 0.05)  # of the change
LOST = 0.002  # share of accuracy that may be lost, where there are classes
TOLERANCES = (0.005, 0.0085, 0.01, 0.0118, 0.0135, 0.02, 0.0235, 0.027, 0.05, 0.059, 0.0675, 0.1)  # given to bnrank
MORE = (0.2, 0.4)  # where there are classes: accuracy allows more
FEW_MORE = (0.11, 0.2, 0.4)  # the same without fine-tuning
ALLOWED = 1.1  # times the target: the tolerance without fine-tuning; compress reserves a seventh of it
AGAIN = 0.95  # of the tolerance that is in proportion to the target
OWN_TUNING = (0.02,)
STEPS = 200  # of fine-tuning
EVERY = 3  # of the strengths of a peer that are fine-tuned
BATCH, REPEATS = 256, 31  # of the latency
HEAVY = 10**7  # multiply-adds of a network for one sample, above which less is tried
HEAVY_BATCH, HEAVY_REPEATS = 32, 3
HOPELESS = 0.5  # change, above which no stronger setting of a method is tried on a heavy network

Point = dict[str, Any]


def cells(quick: bool) -> list[dict[str, Any]]:
    """Return seed by seed the cases; quick: two seeds of three cases."""
    names = [name for name, case in CASES.items() if case.tuning]
    if quick:
        names = ["F4", "another map", "digits, no ridge"]
    seeds = range(QUICK_SEEDS if quick else SEEDS)
    return [{"seed": seed, "tuned": CASES[name].tuned, "case": name} for seed in seeds for name in names]


def measure(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Train the network of a cell and compress it in all ways."""
    case = CASES[cell["case"]]
    return Contest(case.trained(cell["seed"])).results(case.own_tuning)


class Contest:
    """One trained network, and what every method makes of it."""

    def __init__(self, trained: Trained, tuning: bool = True) -> None:
        self.tuning = tuning
        self.trained, self.net, self.x = trained, trained.net, trained.x
        self.split = copy.deepcopy(self.net)  # other methods see the matrices of attention and LSTM as layers
        split_up(self.split, self.x[:2])
        with torch.no_grad():
            self.outputs, self.reference = self.net(self.x), self.net(trained.held_out)
        self.dense = self.point(self.net, 0.0, False)
        self.heavy = self.dense["multiply_adds"] > HEAVY
        self.rounds = (HEAVY_BATCH, HEAVY_REPEATS) if self.heavy else (BATCH, REPEATS)
        self.numbers = itertools.count()
        self.networks: dict[int, nn.Module] = {}  # of the points by their number; of finished methods, the best ones

    def results(self, own_tuning: bool) -> list[dict[str, Any]]:
        """Return what all methods give, the latencies measured together."""
        found = [self.attempt("bnrank", self.own)]
        if own_tuning:
            found.append(self.attempt("bnrank, tune=200", self.own_tuned))
        found += [self.attempt(name, lambda name=name: self.peer(name)) for name in PEERS]  # type: ignore[misc]
        self.time([result for result in found if "points" in result])
        return found

    def attempt(self, method: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what a method gives with the best outcome for every target, and forget its other networks."""
        known = set(self.networks)
        result = trials.attempt(method, measure)
        if "points" in result:
            result["best"] = self.best(result)
        kept = known | _numbers(result)
        self.networks = {number: network for number, network in self.networks.items() if number in kept}
        return result

    def own(self) -> dict[str, Any]:
        """Compress by bnrank at several tolerances, and say which were kept on held-out samples."""
        more = self.trained.labels is not None
        if not self.tuning:
            return self.own_near_targets(FEW_MORE if more else ())
        points, kept = [], {}
        for tol in TOLERANCES + (MORE if more else ()):
            network = self.compressed(tol, 0)
            points.append(self.noted(network, tol, False))
            kept[str(tol)] = points[-1]["change"] <= tol
            points.append(self.noted(fine_tuned(network, self.x, self.outputs, STEPS), tol, True))
        return {"points": points, "kept": kept}

    def own_near_targets(self, more: Sequence[float] = ()) -> dict[str, Any]:
        """Compress by bnrank at a tolerance in proportion to each target, and at more.

        Where the change is above the target, once more with a smaller tolerance.
        """
        points, kept = [], {}
        for target, tol in [(t, round(ALLOWED * t, 4)) for t in TARGETS] + [(math.inf, tol) for tol in more]:
            points.append(self.noted(self.compressed(tol, 0), tol, False))
            found = points[-1]["change"]
            kept[str(tol)] = found <= tol
            if found > target:
                smaller = tol * AGAIN * target / found
                points.append(self.noted(self.compressed(smaller, 0), smaller, False))
        return {"points": points, "kept": kept}

    def own_tuned(self) -> dict[str, Any]:
        """Compress by bnrank with its own fine-tuning."""
        points = [self.noted(self.compressed(tol, STEPS), tol, True) for tol in OWN_TUNING]
        return {"points": points, "asked": [str(tol) for tol in OWN_TUNING]}

    def compressed(self, tol: float, tune: int) -> nn.Module:
        """Return bnrank's network; the samples held out decide nothing in it."""
        timing, held_out = Timing(batch_size=8, repeats=1), self.trained.held_out
        return compress(self.net, self.x, tol=tol, held_out=held_out, tune=tune, timing=timing).network

    def peer(self, name: str) -> dict[str, Any]:
        """Shrink by a peer at all its strengths, and fine-tune where bisection for each target leads."""
        peer = PEERS[name]
        try:
            shrunk, points = self.tried(peer, copy.deepcopy(self.split))  # a method that fails may leave hooks
        except Exception:  # it cannot have the layers of attention and LSTM apart
            shrunk, points = self.tried(peer, copy.deepcopy(self.net))
        chosen = list(range(0, len(shrunk), EVERY)) if self.tuning else []
        tuned: dict[int, Point] = {}

        def after_tuning(place: int) -> Point:
            if place not in tuned:
                number = chosen[place]
                network = finished(fine_tuned(shrunk[number], self.x, self.outputs, STEPS))
                tuned[place] = self.noted(network, peer.strengths[number], True, peer.sparse)
            return tuned[place]

        for target in self.targets() if self.tuning else []:
            find_strongest(lambda place, target=target: self.meets(after_tuning(place), target), len(chosen))  # type: ignore[misc]
        return {"points": points + [tuned[place] for place in sorted(tuned)]}

    def tried(self, peer: Peer, net: nn.Module) -> tuple[list[nn.Module], list[Point]]:
        """Return what a peer makes of a network at its strengths, as it is and measured."""
        shrunk, points = [], []
        for strength in peer.strengths:
            shrunk.append(peer.shrink(net, self.x, strength))  # type: ignore[arg-type]
            points.append(self.noted(finished(shrunk[-1]), strength, False, peer.sparse))
            if self.heavy and points[-1]["change"] > HOPELESS:
                break
        return shrunk, points

    def targets(self) -> list[str]:
        """Return the names of what is asked for: changes, and accuracy where there are classes."""
        return [str(t) for t in TARGETS] + ([] if self.trained.labels is None else ["accuracy"])

    def meets(self, point: Point, target: str) -> bool:
        """Say whether an outcome is good enough."""
        if target == "accuracy":
            return point["accuracy"] >= self.dense["accuracy"] - LOST - 1e-9
        return point["change"] <= float(target)

    def noted(self, network: nn.Module, strength: float, tuned: bool, sparse: bool = False) -> Point:
        """Measure a network and keep it for its latency."""
        number = next(self.numbers)
        self.networks[number] = network
        return self.point(network, strength, tuned, sparse) | {"number": number}

    def point(self, network: nn.Module, strength: float, tuned: bool, sparse: bool = False) -> Point:
        """Return what a network costs, and its change and accuracy on held-out samples."""
        with torch.no_grad():
            outputs = network(self.trained.held_out)
        size, work = costs(network, self.x, sparse)
        return {
            "strength": strength,
            "fine_tuned": tuned,
            "parameters": size,
            "multiply_adds": work,
            "change": _finite(change(self.reference, outputs).centered),
            "accuracy": _accuracy(outputs, self.trained.labels),
        }

    def time(self, found: Sequence[dict[str, Any]]) -> None:
        """Time the best outcomes of all methods in turns with the network itself."""
        chosen = sorted(set().union(*map(_numbers, found)))
        batch, repeats = self.rounds
        timed = latency([self.net, *(self.networks[i] for i in chosen)], self.x, batch_size=batch, repeats=repeats)
        speed = dict(zip(chosen, (timed[0].minimum / one.minimum for one in timed[1:]), strict=True))
        for result in found:
            for point in result["points"]:
                point["speed"] = speed.get(point.pop("number"))
            result |= {"data": self.trained.data, "dense": self.dense | {"milliseconds": 1e3 * timed[0].minimum}}

    def best(self, result: dict[str, Any]) -> dict[str, dict[str, Point | None]]:
        """Return for every target the outcome of fewest parameters, as cut and with fine-tuning allowed.

        None where no outcome that meets the target is smaller than the network; "cut" is left out where a method
        always fine-tunes.
        """
        found: dict[str, dict[str, Point | None]] = {}
        points = result["points"]
        for target in result.get("asked", self.targets()):
            good = [p for p in points if self.meets(p, target) and p["parameters"] < self.dense["parameters"]]
            allowed = {"cut": [p for p in good if not p["fine_tuned"]], "tuned": good}
            if all(p["fine_tuned"] for p in points):
                del allowed["cut"]
            found[target] = {how: min(some, key=_size) if some else None for how, some in allowed.items()}
        return found


def _numbers(result: dict[str, Any]) -> set[int]:
    """Return the numbers of the networks that are best for a target."""
    return {point["number"] for how in result.get("best", {}).values() for point in how.values() if point}


def _size(point: Point) -> tuple[int, int, float]:
    return point["parameters"], point["multiply_adds"], point["change"]


def _accuracy(outputs: Tensor, labels: Tensor | None) -> float | None:
    return None if labels is None else float((outputs.argmax(1) == labels).double().mean())


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 1e9
