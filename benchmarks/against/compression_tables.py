"""Tables of the comparison of compressions: what each method saves, and where bnrank wins and loses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.against.compression_cases import CASES
from benchmarks.against.trials import Interval, interval, markdown, wilson

__all__ = ["gains", "tables"]

OURS = "bnrank"
HOW = {"cut": "as cut", "tuned": "fine-tuned"}
SHOWN = "0.02"  # target of which multiply-adds and speed are shown
DASH = "–"

Result = dict[str, Any]


def tables(results: Sequence[Result]) -> str:
    """Return the summary first, then bnrank's word and whether it was kept, then all methods case by case."""
    if not results:
        return "Nothing measured yet."
    names = list(dict.fromkeys(r["case"] for r in results))
    by_case = {name: [r for r in results if r["case"] == name] for name in names}
    parts = [READING, "## bnrank against the best of the others", BEST, _summary(by_case, "parameters")]
    if any("speed" in p for r in results for p in r.get("points", ())):
        parts += ["The same for latency, bnrank's choice against the fastest of theirs:", _summary(by_case, "speed")]
    parts += ["## Whether bnrank's tolerance held on samples that decided nothing", _kept(by_case)]
    for name, some in by_case.items():
        parts += [f"## {_title(name, some)}", _about(name, some), _methods(some)]
    return "\n\n".join(parts)


READING = (
    "Numbers are medians over seeds with 95 percent bootstrap intervals. A target is a change of the output on "
    "held-out samples, relative to the spread of the outputs, of at most 1, 2 or 5 percent; or (classifiers) at most "
    "0.2 points of accuracy lost. For each target a method's outcome of fewest parameters counts; the network itself, "
    "with a gain of 1, where none meets it. Fine-tuning is allowed, not imposed: 200 steps of Adam for every method "
    "alike; `tune=200` is bnrank's own, tried on the networks that train fastest. For the pruning of single entries, "
    "parameters and multiply-adds are those that are not zero, while latency is that of the dense network. Cases "
    "marked † are like those that rules of bnrank were chosen on."
)
BEST = (
    "Ratios above 1: bnrank needs fewer parameters than the best of all others on the same network; below 1, **in "
    "bold**, more. Beside it the seeds with fewer / equally many / more, and the other that was best most often."
)


def gains(results: Iterable[Result], method: str, target: str, how: str, of: str = "parameters") -> dict[int, float]:
    """Return for each seed how many times fewer parameters or multiply-adds, or less time (``of="speed"``).

    Empty where the method was not asked for the target, or failed.
    """
    found = {}
    for result in results:
        if result["method"] == method and how in result.get("best", {}).get(target, {}):
            point = result["best"][target][how]
            if point is None:
                found[result["seed"]] = 1.0
            elif of != "speed":
                found[result["seed"]] = result["dense"][of] / point[of]
            elif "speed" in point:
                found[result["seed"]] = point["speed"]
    return found


def _summary(by_case: dict[str, list[Result]], of: str) -> str:
    rows = []
    for name, some in by_case.items():
        for target in _targets(some):
            row = [_title(name, some), _words(target)]
            for how in HOW:
                row += _compared(some, target, how, of)
            rows.append(row)
    columns = [f"{words}: {what}" for words in HOW.values() for what in ("ratio", "seeds", "best other")]
    return markdown(["case", "target", *columns], rows)


def _compared(some: list[Result], target: str, how: str, of: str) -> list[str]:
    """Return ratio, seeds and best other of one case."""
    own = next(r["method"] for r in some if r["method"].startswith(OURS))
    ours = gains(some, own, target, how, of)
    others = {m: gains(some, m, target, how, of) for m in _methods_of(some) if not m.startswith(OURS)}
    ratios, best = [], Counter[str]()
    for seed, gain in ours.items():
        there = {m: found[seed] for m, found in others.items() if seed in found}
        if there:
            first = max(there, key=lambda m: there[m])
            best[first] += 1
            ratios.append(gain / there[first])
    if not ratios:
        return [DASH] * 3
    found = interval(ratios, np.median)
    text = f"{found:.3g}" if found.estimate >= 1 else f"**{found:.3g}**"
    counts = [sum(r > 1 for r in ratios), sum(r == 1 for r in ratios), sum(r < 1 for r in ratios)]
    return [text, " / ".join(str(c) for c in counts), best.most_common(1)[0][0]]


def _kept(by_case: dict[str, list[Result]]) -> str:
    tolerances = sorted({float(t) for some in by_case.values() for r in some for t in r.get("kept", {})})
    rows = []
    for name, some in by_case.items():
        row = [_title(name, some)]
        for tol in tolerances:
            kept = [r["kept"][str(tol)] for r in some if str(tol) in r.get("kept", {})]
            row.append(f"{wilson(sum(kept), len(kept)):.2f}")
        rows.append(row)
    return markdown(["case", *(f"tol = {tol:g}" for tol in tolerances)], rows)


def _methods(some: list[Result]) -> str:
    targets = _targets(some)
    rows = []
    for method in _methods_of(some):
        reasons = [r["failed"] for r in some if r["method"] == method and "failed" in r]
        for how, words in HOW.items():
            shown = [_gain(some, method, target, how, "parameters") for target in targets]
            shown += [_gain(some, method, SHOWN, how, of) for of in ("multiply_adds", "speed")]
            if set(shown) != {DASH}:
                rows.append([method, words, *shown])
        if reasons:
            rows.append([method, f"failed on {len(reasons)}: {reasons[0]}", *[DASH] * (len(targets) + 2)])
    headings = [f"parameters, {_words(target)}" for target in targets]
    more = [f"{of}, {_words(SHOWN)}" for of in ("multiply-adds", "latency")]
    return markdown(["method", "", *headings, *more], rows)


def _gain(some: list[Result], method: str, target: str, how: str, of: str) -> str:
    found: Interval = interval(list(gains(some, method, target, how, of).values()), np.median)
    return f"{found:.3g}" if found.n else DASH


def _about(name: str, some: list[Result]) -> str:
    whole = [r for r in some if "dense" in r and r["method"] == OURS] or [r for r in some if "dense" in r]
    seeds = len({r["seed"] for r in some})
    if not whole:
        return f"{CASES[name].about}; {seeds} seeds; every method failed."
    dense = [r["dense"] for r in whole]
    text = f"{CASES[name].about} ({', '.join(sorted({r['data'] for r in whole}))}); {seeds} seeds; "
    text += f"{dense[0]['parameters']:,} parameters, {dense[0]['multiply_adds']:,} multiply-adds, "
    text += f"{interval([d['milliseconds'] for d in dense], np.median):.3g} ms for a batch of 256 on one thread"
    if dense[0]["accuracy"] is not None:
        text += f"; accuracy {100 * interval([d['accuracy'] for d in dense]).estimate:.2f} percent"
    return text + ". How many times fewer, or faster:"


def _title(name: str, some: list[Result]) -> str:
    return name + (" †" if some[0]["tuned"] else "")


def _words(target: str) -> str:
    return "accuracy" if target == "accuracy" else f"{100 * float(target):g} %"


def _targets(some: list[Result]) -> list[str]:
    return list(dict.fromkeys(target for r in some for target in r.get("best", {})))


def _methods_of(some: list[Result]) -> list[str]:
    return list(dict.fromkeys(r["method"] for r in some))
