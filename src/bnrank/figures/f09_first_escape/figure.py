"""F9 (Bantzis2025, Figures 1 and 3): handwritten digits from small weights, past the first and the second saddle."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bnrank.figures.f09_first_escape import fits, joins, saddles
from bnrank.figures.f09_first_escape.saddles import Descent
from bnrank.figures.harness.ahead import ahead
from bnrank.figures.harness.claims import Claim, prefixed
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.reporting import Section
from bnrank.tasks import handwritten_digits

DEPTH = 6


@dataclass(frozen=True)
class Settings:
    """Settings of F9.

    Attributes
    ----------
    images : int or None
        Number of digits; None for all.
    width : int
        Of the hidden layers.
    runs : tuple of Descent
        Flows from small weights; the last one is followed past the second saddle.
    scales : tuple of float
        Of the small weights around the saddle with one neuron per layer.
    deep : int
        The first of the deep layers.
    seeds : int
        Number of networks whose ranks are measured; the first one is drawn.
    first_seed : int
        Of the networks.
    fit_steps : int
        Of the narrow networks that tell which ranks fit a loss.
    """

    images: int | None
    width: int
    runs: tuple[Descent, ...]
    scales: tuple[float, ...]
    deep: int = 3
    seeds: int = 5
    first_seed: int = 0
    fit_steps: int = 1500


def make(settings: Settings, folder: Path, progress: bool) -> Outcome:
    """Follow a bias-free network of depth 6 from small weights, and a perturbed chain of single neurons.

    The plateau at the origin is skipped (T35); from there Euler steps follow the flow on mini-batches. The time until a
    second singular value emerges in the deep layers grows like a power of 1/init; at a saddle with one neuron per
    layer, the time until further neurons join is log(1/scale) / kappa.
    """
    s, task = settings, handwritten_digits(settings.images)
    claims: list[Claim] = []
    sections, pictures, captions = [], {}, {}
    runs = [(one, folder / f"run-{i}", s.first_seed) for i, one in enumerate(s.runs)]
    others = range(s.first_seed + 1, s.first_seed + s.seeds)
    runs += [(s.runs[-1], folder / f"run-{len(s.runs) - 1}-seed-{seed}", seed) for seed in others]
    flows = [partial(saddles.descend_digits, s.images, DEPTH, s.width, *one) for one in runs]
    ahead([*flows, *fits.calls(s.images, s.fit_steps, folder)], progress)
    for i, descent in enumerate(s.runs):
        flow = saddles.descend(task, DEPTH, s.width, descent, folder / f"run-{i}", progress, seed=s.first_seed)
        last, init = i == len(s.runs) - 1, f"init {descent.init:g}"
        title = f"{task.name}, {task.n} images, width {s.width}, {init}"
        predict = i == 0 and not descent.norm_power  # T37 is for steps that are short next to the escape
        part = saddles.Part.of(flow, task, title, predict=predict, deep=s.deep)
        claims += prefixed(init, part.claims(last))
        sections.append(part.section())
        name = "plateaus" if last else f"plateaus-init-{descent.init:g}"
        pictures[name] = part.picture()
        captions[name] = f"The loss and the spectra of all layers, from weights of scale {descent.init:g}"
    fitted, ranks = fits.fits(task, s.fit_steps, folder, s.images), {s.first_seed: fits.stages(flow, part.found, task)}
    for seed in others:
        other = saddles.descend(task, DEPTH, s.width, descent, folder / f"run-{i}-seed-{seed}", progress, seed=seed)
        ranks[seed] = fits.stages(other, saddles.stages(other.history), task)
    claims += fits.claims(ranks.values(), fitted)
    sections.append(fits.section(ranks, fitted))
    exits = joins.measure(task, DEPTH, settings.scales)
    pictures["joins"] = joins.draw(exits)
    captions["joins"] = "How long a network stays at a saddle around which its other weights are small"
    table = [
        {"scale": s, "exit at": t, "log(1/scale) / kappa": float(np.log(1 / s) / exits.kappa), "observed rate": r}
        for s, t, r in zip(exits.scales, exits.times, exits.rates, strict=True)
    ]
    text = (
        f"A saddle with one neuron per layer (mean squares, {joins.SAMPLES} images in {joins.COMPONENTS} components), "
        f"small weights around it, width {joins.WIDTH}. kappa = {exits.kappa:.4g}. Ten times larger weights shorten "
        "the plateau by a constant, not by a factor."
    )
    sections.append(Section("Leaving a saddle by joins (T41)", text=text, rows=table))
    made, data = (*claims, *joins.claims(exits)), {"data": task.name}
    return Outcome(claims=made, sections=sections, pictures=pictures, settings=data, captions=captions)


def escape(loss: np.ndarray, share: float = 0.1) -> int | None:
    """Return the row at which the first drop of the loss ends, None if there is none.

    The drop begins where the loss is 5 percent below its first value, and ends where its rate of decrease is less than
    ``share`` of the fastest rate so far.
    """
    loss = loss[np.isfinite(loss)]
    begun, rate = np.flatnonzero(loss < 0.95 * loss[:1]), -np.diff(loss)
    slow = np.flatnonzero(rate < share * np.maximum.accumulate(rate))
    over = slow[slow >= begun[0]] if len(begun) else slow[:0]
    return int(over[0]) if len(over) else None


EPOCH = 60_000 // 32  # steps of the source
PRINT = Descent(1e-3, 1e9, 10.0, 32, norm_power=4.0, plateau_batch_size=1024, max_steps=200 * EPOCH)
QUICK = Settings(1000, 50, (Descent(1e-3, 40.0, 0.1, 50), Descent(3e-2, 900.0, 0.1, 50)), scales=(1e-3, 1e-4, 1e-5))
PAPER = Settings(None, 1000, (PRINT,), scales=(1e-3, 1e-4, 1e-5, 1e-6), deep=4, seeds=1)

FIGURE = Figure(
    "F9",
    "first-escape",
    "Leaving the saddle at the origin, every deep layer becomes rank one; leaving the second, rank two",
    "Bantzis2025, Figures 1 and 3",
    "a plateau of the loss; then one dominant singular value per layer, more so in deep layers; a second one later",
    {"quick": QUICK, "paper": PAPER},
    make,
    version=3,
    gigabytes={"quick": 0.7, "paper": 3.5},
    data={"paper": ("mnist",)},
)
