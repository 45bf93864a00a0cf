"""Headline and tables of what discovery found: a fit, a compression, symmetries."""

import math
from collections.abc import Iterable

import numpy as np
from torch import nn

from bnrank._core.text import cell
from bnrank.discovery.compression.certificate import Accuracy, Certificate
from bnrank.discovery.compression.judging import Change
from bnrank.discovery.compression.result import Compressed
from bnrank.discovery.estimators.counts import Trial
from bnrank.discovery.estimators.summary import Summary
from bnrank.discovery.symmetry_search.pieces import field_text
from bnrank.discovery.symmetry_search.result import Symmetries
from bnrank.reporting.blocks import Block, Said, Text, details, table
from bnrank.reporting.charts.discovery import classes, describes_itself, score

MAX_GENERATORS = 100


def headline(found: Summary | Compressed | Symmetries) -> list[Block]:
    """Return what was found in one sentence, how sure it is, and what that rests on."""
    if isinstance(found, Summary):
        return _summary_headline(found)
    return _compressed_headline(found) if isinstance(found, Compressed) else _symmetries_headline(found)


def rows_below(found: Summary | Compressed | Symmetries) -> list[Block]:
    """Return what stands below the plots."""
    if isinstance(found, Summary):
        return _summary_tables(found)
    return _compressed_tables(found) if isinstance(found, Compressed) else _symmetries_tables(found)


# a fit ----------------------------------------------------------------------------------------------------------------


def _summary_headline(summary: Summary) -> list[Block]:
    k, labels = summary.n_components, classes(summary)
    inputs = f"x ({_count(len(summary.inputs), 'column')})"
    if describes_itself(summary):
        what, goal = ("describes" if k == 1 else "describe"), inputs
    else:
        what = "carries" if k == 1 else "carry"
        outputs = f"y ({_count(summary.outputs, 'column')})" if labels is None else f"{len(labels)} classes"
        goal = f"{inputs} to {outputs}"
    low, high = summary.interval
    if k:
        said = f"{_count(k, 'number')} {what} {goal}"
    elif summary.undetermined:
        said = (
            f"No latent variable that {'describes' if describes_itself(summary) else 'carries'} {goal} was established"
        )
    else:
        said = f"Nothing was found that {'describes' if describes_itself(summary) else 'carries'} {goal}"
    reason = summary.reason.removeprefix("undetermined: ").removeprefix("nothing was found: ")
    if summary.undetermined:
        return _head(said, "warn", f"undetermined because {reason} (interval {low} to {high})")
    return _head(said, _mark("good" if k else "warn", low, high), f"interval {low} to {high}: {reason}")


def _summary_tables(summary: Summary) -> list[Block]:
    labels = classes(summary)
    facts: dict[str, object] = {
        "model": summary.model,
        "rows": summary.rows,
        "inputs": len(summary.inputs),
        "outputs" if labels is None else "classes": summary.outputs if labels is None else len(labels),
        "R² on these rows" if labels is None else "accuracy on these rows": score(summary.score),
        "largest detectable rank": summary.bound,
        "input combinations": summary.n_input_directions,
        "ridge": summary.ridge,
    }
    coordinates = [
        {
            "coordinate": f"z{j + 1}",
            "influence": float(summary.influence[j]),
            "moves most with": ", ".join(
                f"{summary.inputs[i]} ({summary.sensitivity[j, i]:.2g})"
                for i in np.argsort(-summary.sensitivity[j], kind="stable")[:6]
            ),
        }
        for j in range(summary.n_components)
    ]
    return [
        *table([facts], "The fit"),
        *table(coordinates, "Coordinates, most influential first"),
        *table(_stability_rows(summary.stability), "Count of every trained network", whole=True),
        *(Text(note, "note") for note in summary.notes),
    ]


def _stability_rows(trials: Iterable[Trial]) -> list[dict[str, object]]:
    """Return one row per depth, ridge and kind of training, with the count of every fold or seed."""
    groups: dict[tuple[int, float, bool], list[Trial]] = {}
    for trial in sorted(trials, key=lambda t: (t.depth, -t.ridge, t.fold is None, t.seed, t.fold or 0)):
        groups.setdefault((trial.depth, trial.ridge, trial.fold is None), []).append(trial)
    rows = []
    for (depth, ridge, whole), group in groups.items():
        losses = [trial.held_out for trial in group if not math.isnan(trial.held_out)]
        row: dict[str, object] = {
            "ridge": ridge,
            "depth": depth,
            "trained on": "all rows" if whole else "all folds but one",
            "seeds": " ".join(dict.fromkeys(str(trial.seed) for trial in group)),
            "counts": " ".join(str(trial.count) for trial in group),
        }
        if any(trial.weight_rank is not None for trial in group):
            row["ranks of weights"] = " ".join(cell(trial.weight_rank) for trial in group)
        row["held-out loss"] = float(np.mean(losses)) if losses else None
        row["within one standard error"] = any(trial.considered for trial in group)
        rows.append(row)
    return rows


# a compression --------------------------------------------------------------------------------------------------------


def _compressed_headline(found: Compressed) -> list[Block]:
    certificate = found.certificate
    after, before = certificate.parameters, certificate.parameters_before
    if not found.changed:
        return _head("Returned unchanged", "warn", found.reason or "nothing could be removed")
    said = f"{before:,} parameters became {after:,}, {before / max(after, 1):.3g} times fewer"
    change = f"change on held-out samples {_percent(certificate.held_out.centered)} of the spread of the outputs"
    verdict = "within" if certificate.met else "NOT within"
    how = f"{change}, {verdict} the tolerance of {_percent(certificate.tol)}"
    return _head(said, "good" if certificate.met else "bad", how)


def _compressed_tables(found: Compressed) -> list[Block]:
    certificate = found.certificate
    before, after = certificate.latency_before, certificate.latency
    costs = [
        _cost("parameters", f"{certificate.parameters_before:,}", f"{certificate.parameters:,}")
        | {"ratio": certificate.parameters_before / max(certificate.parameters, 1)},
        _cost("multiply-adds per sample", f"{certificate.multiply_adds_before:,}", f"{certificate.multiply_adds:,}")
        | {"ratio": certificate.multiply_adds_before / max(certificate.multiply_adds, 1)},
        _cost(
            f"minimum latency in ms, batch {after.batch_size}",
            f"{1e3 * before.minimum:.3f}",
            f"{1e3 * after.minimum:.3f}",
        )
        | {"ratio": certificate.speedup},
    ]
    timed = (
        f"Latency: minimum of {after.repeats} interleaved rounds{_unsure(certificate)}, "
        f"{_count(after.threads, 'thread')}, {after.device}, "
        f"{after.dtype}; quartiles {1e3 * before.low:.3f} to {1e3 * before.high:.3f} ms before, "
        f"{1e3 * after.low:.3f} to {1e3 * after.high:.3f} ms after."
    )
    changes = [
        _change("all of x", certificate.on_x, certificate.accuracy),
        _change("held out", certificate.held_out, certificate.held_out_accuracy),
    ]
    steps = [
        {
            "step": i,
            "kind": step.kind,
            "where": step.where or "the whole",
            "action": step.what,
            "change so far, %": 100 * step.change,
        }
        for i, step in enumerate(found.steps, 1)
    ]
    left = [
        {"unchanged": entry.name or "the module", "type": entry.type, "because": entry.reason}
        for entry in found.skipped
    ]
    layers = _layer_rows(found.network)
    return [
        *table(steps, "Steps, in order", whole=True),
        *([Text(f"Not collapsed: {found.reason}")] if found.reason and found.changed else []),
        *table(costs, "Certificate: cost before and after"),
        Text(timed, "note"),
        *table(changes, f"Certificate: change, tolerance {_percent(certificate.tol)} of the spread"),
        *(Text(line, "note") for line in _bounds(found)),
        *table(left, f"Unchanged layers, and why ({len(left)})"),
        *details(f"Layers of the network returned ({len(layers)})", table(layers, "Layers")),
    ]


def _unsure(certificate: Certificate) -> str:
    return "" if certificate.speedup_certain else " (uncertain: the quartiles of the times overlap)"


def _bounds(found: Compressed) -> Iterable[str]:
    certificate = found.certificate
    yield (
        f"For i.i.d. samples, at most {_percent(certificate.share_beyond)} change by more than the largest "
        "held-out change, with 95 percent confidence."
    )
    if certificate.rank is not None:
        yield f"The network returned has bottleneck rank at most {certificate.rank}, on all inputs (T18)."
    if certificate.jacobian_rank is not None:
        yield (
            f"Its Jacobian has rank {certificate.jacobian_rank} on the samples (before: "
            f"{certificate.jacobian_rank_before}), below which no bottleneck rank can be (T5)."
        )
    if certificate.bound is not None:
        at, more = _percent(certificate.bound.within(0.0)), _percent(certificate.bound.per_distance)
        yield (
            f"At distance r from the samples the change is at most {at} + {more} r of the outputs (Lipschitz "
            "constants; usually loose)."
        )


def _cost(what: str, before: str, after: str) -> dict[str, object]:
    return {"": what, "before": before, "after": after}


def _change(where: str, change: Change, accuracy: Accuracy | None) -> dict[str, object]:
    row: dict[str, object] = {
        "measured on": where,
        "samples": change.samples,
        "of the outputs, %": 100 * change.relative,
        "of their spread, %": 100 * change.centered,
        "largest, %": 100 * change.worst,
    }
    if not math.isnan(change.decisions):
        row["decisions changed, %"] = 100 * change.decisions
    if accuracy is not None:
        row |= {"accuracy before, %": 100 * accuracy.before, "after, %": 100 * accuracy.after}
    return row


def _layer_rows(network: nn.Module) -> list[dict[str, object]]:
    """Return one row per module without children: name, what it is, its parameters."""
    leaves = [(name, part) for name, part in network.named_modules() if not list(part.children())]
    return [
        {
            "name": name or "the module",
            "layer": f"{type(part).__name__}({part.extra_repr()})",
            "parameters": sum(p.numel() for p in part.parameters()),
        }
        for name, part in leaves
    ]


# symmetries -----------------------------------------------------------------------------------------------------------

_TRUST = {"exact": "good", "approximate": "good", "undetermined": "warn", "none": "warn"}


def _symmetries_headline(found: Symmetries) -> list[Block]:
    low, high = found.interval
    count = f"{found.dimension} infinitesimal {'symmetry' if found.dimension == 1 else 'symmetries'}"
    said = f"{count} and {len(found.held)} of {len(found.finite)} finite ones tested"
    status = {"none": "none infinitesimal"}.get(found.status, found.status)
    how = f"{status}: {found.reason} ({low} to {high} over resamples)"
    return _head(said, _mark(_TRUST[found.status], low, high), how)


def _symmetries_tables(found: Symmetries) -> list[Block]:
    pieces: list[dict[str, object]] = [
        {"kind": piece.kind, "what it does": piece.text, "generators": len(piece) or None, "residual": piece.residual}
        for piece in found.pieces
    ]
    names = list(found.names)
    generators = [
        {"generator": i, "columns change by": field_text(field, names)}
        for i, field in enumerate(found.generators[:MAX_GENERATORS])
    ]
    finite = [
        {
            "transformation": test.text,
            "kind": test.kind,
            "status": test.verdict,
            "change of f": test.change,
            "distance to the data": test.distance,
        }
        for test in sorted(found.finite, key=lambda test: (test not in found.held, test.change))
    ]
    facts: dict[str, object] = {
        "samples": found.samples,
        "columns": len(names),
        "dim Ω": found.domain_dimension,
        "dimension of orbits": found.orbit_dimension,
        "dim Ω / G": found.quotient_dimension,
        "rank of Jf": found.rank,
        "largest residual": found.residual,
        "error of f": found.rtol,
    }
    kept, more = finite[: len(found.held)], finite[len(found.held) :]
    left = found.left_out.shape[1]
    span = f"The data span {found.domain_dimension} of {len(names)} dimensions; the other {left} are not tested."
    return [
        *table(pieces, "Generators, by what they do", whole=True),
        *details(f"Every generator ({len(found.generators)})", table(generators, "Generators")),
        *table([facts], "Consequences for f"),
        *([Text(span, "note")] if left else []),
        *table(kept, f"Finite symmetries of f ({len(kept)})"),
        *details(f"Tested and rejected ({len(more)})", table(more, "Not symmetries")),
    ]


def _mark(trust: str, low: int, high: int) -> str:
    """Return how a count is marked: a good one is neutral, neither a tick nor a warning, while others are possible."""
    return "neutral" if trust == "good" and low < high else trust


def _head(said: str, mark: str, how: str) -> list[Block]:
    return [Text(said, "headline"), Said(how, mark, wraps=True)]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"
