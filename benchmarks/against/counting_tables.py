"""The tables of the count: wins and losses alike, with 95 percent intervals over the seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.against.trials import Kept, failures, interval, markdown, seeds, wilson

__all__ = ["KEPT", "correct", "errors", "recovery", "tables"]

Result = dict[str, Any]
OURS = "bnrank"
COLUMNS = {  # of the tables of the page
    OURS: OURS,
    "reduced rank, paired": "reduced-rank regression, 1 SE in pairs",
    "reduced rank": "reduced-rank regression, 1 SE",
    "PLS": "PLS (scikit-learn)",
    "SIR": "SIR (sliced), own rule",
    "SAVE": "SAVE (sliced), own rule",
    **{f"TwoNN on {of}": f"TwoNN (scikit-dimension) on {of}" for of in ("x", "y", "(x, y)")},
    "encoder-decoder sweep": "encoder-decoder sweep",
}
PREDICTING = (OURS, "reduced rank, paired", "PLS", "SIR", "SAVE", "encoder-decoder sweep")
NUMBERS = ("count", "low", "high", "undetermined", "prediction", "coordinates")
KEPT = Kept(NUMBERS, tuple(COLUMNS.values()), group="family")
GROUPS: list[tuple[str, Callable[[Result], bool]]] = [
    ("nonlinear numbers of x, by k", lambda c: c["family"] == "smooth" and _at(c, "d", "noise", "n")),
    ("by number of inputs d", lambda c: c["family"] == "smooth" and _at(c, "k", "noise", "n")),
    ("by noise", lambda c: c["family"] == "smooth" and _at(c, "k", "d", "n")),
    ("by number of rows n", lambda c: c["family"] == "smooth" and _at(c, "k", "d", "noise")),
    ("the map that bnrank was developed on", lambda c: c["family"] == "low_rank_map"),
    ("what the peers assume", lambda c: c["family"] in ("linear", "directions", "surface")),
]
USUAL = {"k": 3, "d": 20, "noise": 0.1, "n": 300}
PREAMBLE = """\
Planted counts: y (20 columns) is a function of k numbers z of x (d columns), with noise in percent of the spread of y.
`smooth`: every number is a nonlinear function of two directions of x; never used in developing bnrank, nor were
`linear`, `directions` and `surface`, on which reduced-rank regression, SIR and SAVE, and scikit-dimension on x are
at home. `low_rank_map`: bnrank's own task, on which its rule was developed; rows marked (tuned) are such as the rule
was chosen on. SIR and SAVE count linear combinations of x (2 k for `smooth`), scikit-dimension the dimension of a cloud
of points: where these differ from k, their answer to their own question may be right. 95 percent intervals over the
seeds: Wilson's for shares, resampling for means. A method that fails counts as wrong; failures are listed at the end.
Times are processor seconds of one run on one thread of this machine, as ratios to bnrank's fit of the same case."""


def tables(results: list[Result]) -> str:
    """Return all tables, from results with the entries of cell and method together."""
    if not results:
        return "Nothing measured."
    cases = list(dict.fromkeys(_case(r) for r in results))
    methods = list(dict.fromkeys(r["method"] for r in results))
    by: dict[tuple[str, str], list[Result]] = {(c, m): [] for c in cases for m in methods}
    for result in results:
        by[_case(result), result["method"]].append(result)
    parts = [PREAMBLE, "## Where bnrank stands", _standing(by, cases, methods)]
    parts += ["## All cases of a family together: share of right counts", _families(results, methods)]
    parts += ["## bnrank's own answer", _own(by, cases)]
    for title, show in [
        ("Share of right counts", _right),
        ("Share within one", _near),
        ("Error of the predictions (1: as the mean)", lambda rows: _mean(rows, "prediction")),
        (
            "Coordinates: R² of the true numbers from them; in brackets, after the slash, what they hold beside",
            _coordinates,
        ),
        ("Time over bnrank's", lambda rows: _mean(rows, "ratio", of=np.median)),
    ]:
        parts.append(f"## {title}")
        first = {_case(r): r for r in reversed(results)}
        for name, belongs in GROUPS:
            if chosen := sorted((c for c in cases if belongs(first[c])), key=lambda c: _order(first[c])):
                rows = [[m, *(show(by[c, m]) for c in chosen)] for m in methods]
                parts.append(f"{name[0].upper()}{name[1:]}:")
                parts.append(
                    markdown([f"method ({_seeds(by, chosen)} seeds)", *chosen], [r for r in rows if set(r[1:]) != {""}])
                )
    return "\n\n".join([*parts, "## Failures", _failures(results)])


def correct(results: Sequence[Result]) -> str:
    """Return the tables of the page on correct counts, case by case and by family, and what bnrank says of its own."""
    results = _renamed(results)
    rows, all_methods = _by_case(results), list(COLUMNS)
    cells = [[case, *(_hits(own.get(m, [])) for m in all_methods)] for case, own in rows.items()]
    ours = [r for r in results if r["method"] == OURS]
    right = [r for r in ours if r.get("count") == r["k"]]
    said = (
        f"bnrank: {len(right)} of {len(ours)} counts are correct, and "
        f"{sum('low' in r and r['low'] <= r['k'] <= r['high'] for r in ours)} intervals cover the truth. "
        f"{sum(r.get('undetermined', False) for r in ours)} counts are `undetermined`, "
        f"{sum(r['undetermined'] for r in right)} of them correct."
    )
    families = _families(results, all_methods, "fraction correct, 95 percent intervals")
    tables = markdown(["case", *all_methods], cells), families, said, failures(results)
    return "\n\n".join(table for table in tables if table)


def errors(results: Sequence[Result]) -> str:
    """Return the table of the page on prediction errors."""
    return _means(results, "prediction")


def recovery(results: Sequence[Result]) -> str:
    """Return the table of the page on how well the latent variables are recovered."""
    return _means(results, "coordinates")


def _means(results: Sequence[Result], key: str) -> str:
    rows = []
    by_case = _by_case(_renamed(results))
    for case, own in by_case.items():
        values = ([r[key] for r in own.get(m, []) if key in r] for m in PREDICTING)
        rows.append([case, *(f"{np.mean(found):.2f}" if found else "–" for found in values)])
    number = seeds([[r for some in own.values() for r in some] for own in by_case.values()])
    return f"{markdown(['case', *PREDICTING], rows)}\n\nMeans over {number}."


def _renamed(results: Sequence[Result]) -> list[Result]:
    names = {method: name for name, method in COLUMNS.items()}
    return [r | {"method": names[r["method"]]} for r in results if r["method"] in names]


def _by_case(results: Sequence[Result]) -> dict[str, dict[str, list[Result]]]:
    found: dict[str, dict[str, list[Result]]] = {}
    for r in results:
        case = f"`{r['family']}`, k = {r['k']}, d = {r['d']}, noise {100 * r['noise']:g} %, N = {r['n']:,}"
        own = found.setdefault(case + (" (tuned)" if r["tuned"] else ""), {})
        own.setdefault(r["method"], []).append(r)
    return found


def _hits(rows: Sequence[Result]) -> str:
    return f"{sum(r.get('count') == r['k'] for r in rows)} of {len(rows)}" if rows else "–"


def _standing(by: dict[tuple[str, str], list[Result]], cases: list[str], methods: list[str]) -> str:
    """Set bnrank beside the best of all others, chosen after the fact and case by case, which favors them."""
    rows = []
    for case in cases:
        ours = by.get((case, OURS), [])
        peers = [m for m in methods if m != OURS and by[case, m]]
        if not ours or not peers:
            continue
        counting = [m for m in peers if any("count" in r for r in by[case, m])]
        best = max(counting, key=lambda m: _share(by[case, m]), default=None)
        counts = ["–", ""]
        if best is not None:
            gap = _share(ours) - _share(by[case, best])
            counts = [f"{_right(by[case, best])} {best}", "ahead" if gap > 0 else "behind" if gap < 0 else "level"]
        rows.append([case, str(len(ours)), _right(ours), *counts, *_best_prediction(by, case, peers)])
    headings = ["case", "seeds", "right: bnrank", "right: best other", "", "error: bnrank", "error: best other", ""]
    return (
        "Against the best of all other methods in each case, chosen after the fact. Counts: ahead, level or behind by "
        "the share itself; errors: by the interval of the difference seed by seed.\n\n" + markdown(headings, rows)
    )


def _best_prediction(by: dict[tuple[str, str], list[Result]], case: str, peers: Sequence[str]) -> list[str]:
    ours = {r["seed"]: r["prediction"] for r in by[case, OURS] if "prediction" in r}
    means = {}
    for method in peers:
        theirs = {r["seed"]: r["prediction"] for r in by[case, method] if "prediction" in r}
        if theirs and theirs.keys() >= ours.keys():
            means[method] = theirs
    if not ours or not means:
        return [_mean(by[case, OURS], "prediction"), "–", ""]
    best = min(means, key=lambda m: float(np.mean([means[m][seed] for seed in ours])))
    difference = interval([ours[seed] - means[best][seed] for seed in ours])
    verdict = "ahead" if difference.high < 0 else "behind" if difference.low > 0 else "level"
    return [_mean(by[case, OURS], "prediction"), f"{_mean(by[case, best], 'prediction')} {best}", verdict]


def _families(results: list[Result], methods: list[str], heading: str = "method") -> str:
    families = list(dict.fromkeys((r["family"], r["tuned"]) for r in results))
    rows = []
    for method in methods:
        mine = [r for r in results if r["method"] == method]
        if any("count" in r for r in mine):
            rows.append([method, *(_right([r for r in mine if (r["family"], r["tuned"]) == f]) for f in families)])
    return markdown([heading, *(name + (" (tuned)" if tuned else "") for name, tuned in families)], rows)


def _own(by: dict[tuple[str, str], list[Result]], cases: list[str]) -> str:
    rows = []
    for case in cases:
        found = [r for r in by[case, OURS] if "count" in r] if (case, OURS) in by else []
        if found:
            n = len(found)
            covered = sum(r["low"] <= r["k"] <= r["high"] for r in found)
            shares = [covered, sum(r["undetermined"] for r in found)]
            wide = interval([r["high"] - r["low"] for r in found])
            kinds = ", ".join(sorted({r["model"] for r in found}))
            counts = " ".join(str(r["count"]) for r in sorted(found, key=lambda r: r["seed"]))
            seconds = f"{interval([r['seconds'] for r in found], np.median):.2g}"
            rows.append([case, n, counts, _right(found), _near(found), *(f"{wilson(s, n):.2f}" for s in shares)])
            rows[-1] += [f"{wide:.1f}", kinds, seconds]
    headings = ["case", "seeds", "counts", "right", "within one", "interval covers", "undetermined", "interval's width"]
    return markdown([*headings, "model", "seconds"], rows)


def _failures(results: list[Result]) -> str:
    told: dict[tuple[str, str], int] = {}
    for result in results:
        if "failed" in result:
            key = result["method"], result["failed"]
            told[key] = told.get(key, 0) + 1
    if not told:
        return "None."
    return markdown(["method", "cells", "reason"], [[method, n, reason] for (method, reason), n in told.items()])


def _share(rows: list[Result]) -> float:
    return sum(r.get("count") == r["k"] for r in rows) / len(rows)


def _right(rows: list[Result]) -> str:
    return _shared(rows, 0)


def _near(rows: list[Result]) -> str:
    return _shared(rows, 1)


def _shared(rows: list[Result], distance: int) -> str:
    """Return the share of counts at most so far from k; failures are wrong, methods without a count have none."""
    if not any("count" in r or "failed" in r for r in rows):
        return ""
    near = sum("count" in r and abs(r["count"] - r["k"]) <= distance for r in rows)
    return f"{wilson(near, len(rows)):.2f}"


def _mean(rows: list[Result], key: str, of: Callable[..., Any] = np.mean) -> str:
    return f"{interval(values, of):.2g}" if (values := [r[key] for r in rows if key in r]) else ""


def _coordinates(rows: list[Result]) -> str:
    found, beside = _mean(rows, "coordinates"), [r["surplus"] for r in rows if "surplus" in r]
    return f"{found} / {np.mean(beside):.2g}" if beside else found


def _seeds(by: dict[tuple[str, str], list[Result]], cases: Sequence[str]) -> str:
    numbers = [len(rows) for (case, _), rows in by.items() if case in cases and rows]
    return str(min(numbers)) if min(numbers) == max(numbers) else f"{min(numbers)} to {max(numbers)}"


def _case(cell: Result) -> str:
    name = f"{cell['family']}, k={cell['k']}, d={cell['d']}, noise {cell['noise']:.0%}, n={cell['n']}"
    return name + (" (tuned)" if cell["tuned"] else "")


def _at(cell: Result, *names: str) -> bool:
    return all(cell[name] == USUAL[name] for name in names)


def _order(cell: Result) -> tuple[Any, ...]:
    return cell["family"], cell["k"], cell["d"], cell["noise"], cell["n"]
