"""Results of discovery on a page: headline, charts and tables of a fit, a compression or symmetries."""

import itertools
import math
from collections.abc import Iterable

import numpy as np
from torch import nn

from bnrank._core.text import cell
from bnrank.discovery.compression.certificate import Accuracy, Change
from bnrank.discovery.compression.result import Compressed
from bnrank.discovery.estimators.counts import Trial
from bnrank.discovery.estimators.summary import Summary
from bnrank.discovery.estimators.terms import explained
from bnrank.discovery.films.summary import FilmSummary
from bnrank.discovery.symmetry_search.result import Symmetries
from bnrank.discovery.symmetry_search.words import field_text
from bnrank.reporting.blocks import Block, Plot, Said, Text, details, table
from bnrank.reporting.charts.discovery import classes, score, view

MAX_GENERATORS = 100
STATUS_WORDS = {
    "exact": "exact in f",
    "approximate": "approximate",
    "none": "none, all are excluded",
    "undetermined": "undetermined, more may exist",
}
SYMMETRY_WORDS = (
    "An infinitesimal symmetry is a gradual change of x that leaves f(x) unchanged. Its residual is 0 if f does not "
    "change at all, and about 1 if f changes as much as along any other direction. In the data, a symmetry is within "
    "the held-out error if moving samples along it changes f by at most 1.5 times that error. Changes are "
    "relative to the spread of f."
)


def found_blocks(found: Summary | FilmSummary | Compressed | Symmetries, key: str) -> list[Block]:
    """Return the blocks of a result: one sentence, its certainty, charts, and tables."""
    if isinstance(found, Summary):
        (said, mark, how), rows = _fit(found), _fit_tables(found)
    elif isinstance(found, FilmSummary):
        (said, mark, how), rows = _films(found), _films_tables(found)
    elif isinstance(found, Compressed):
        (said, mark, how), rows = _compression(found), _compression_tables(found)
    else:
        (said, mark, how), rows = _symmetries(found), _symmetries_tables(found)
    return [Text(said, "headline"), Said(how, mark, wraps=True), Plot(key, view(found)), *rows]


# a fit ----------------------------------------------------------------------------------------------------------------


def _fit(summary: Summary) -> tuple[str, str, str]:
    """Return the result in one sentence, its mark, and the evidence."""
    if summary.scalar:
        return _fit_of_one(summary)
    k, labels, inputs = summary.n_components, classes(summary), _count(len(summary.inputs), "input")
    outputs = _count(summary.outputs, "output") if labels is None else f"{len(labels)} classes"
    suffice = f"{'suffice' if k > 1 else 'suffices'} to predict the {outputs}"
    said = f"{_count(k, 'variable')} computed from the {inputs} {suffice}"
    doubt = f"It is undetermined how many variables computed from the {inputs} predict the {outputs}"
    nothing = f"Nothing in the {inputs} was found to predict the {outputs}"
    if summary.estimator.endswith("Autoencoder"):  # its outputs are its inputs
        said = f"{_count(k, 'variable')} {'suffice' if k > 1 else 'suffices'} to describe the {inputs}"
        doubt = f"It is undetermined how many variables describe the {inputs}"
        nothing = f"Nothing was found that the {inputs} have in common"
    low, high = summary.interval
    if summary.undetermined:
        said = f"{doubt}: {low} to {high}" if high > low else doubt
    elif not k:
        said = nothing
    reason = summary.reason.removeprefix("undetermined: ").removeprefix("nothing was found: ")
    if summary.undetermined:
        return said, "warn", f"undetermined because {reason} (interval {low} to {high}); {k} used here"
    if not summary.state_undetermined and summary.state_dimension < k:
        said += f"; the rows fill a set of dimension {summary.state_dimension} in them"
    return said, _mark("good" if k else "warn", low, high), f"interval {low} to {high}: {reason}"


def _fit_of_one(summary: Summary) -> tuple[str, str, str]:
    """Return the same for one output or two classes, where the number of combinations of the inputs counts."""
    n, (low, high) = summary.n_input_directions, summary.n_input_directions_interval
    said = f"{summary.dependence} (out of {_count(len(summary.inputs), 'input')})"
    said = f"{said[0].upper() if not n else said[0]}{said[1:]}"
    reason = summary.input_directions_reason.removeprefix("undetermined: ").removeprefix("nothing was found: ")
    if summary.input_directions_undetermined:
        inputs = _count(len(summary.inputs), "input")
        said = f"It is undetermined on how many linear combinations of the {inputs} y depends"
        said += f": {low} to {high}" if high > low else ""
        return said, "warn", f"undetermined because {reason} (interval {low} to {high}); {n} used here"
    return said, _mark("good" if n else "warn", low, high), f"interval {low} to {high}: {reason}"


def _with_interval(number: int, interval: tuple[int, int], undetermined: bool) -> str:
    return f"{number} ({'undetermined, ' if undetermined else ''}interval {interval[0]} to {interval[1]})"


def _fit_tables(summary: Summary) -> list[Block]:
    labels = classes(summary)
    facts: dict[str, object] = {
        "model": summary.model,
        "rows": summary.rows,
        "inputs": len(summary.inputs),
        "outputs" if labels is None else "classes": summary.outputs if labels is None else len(labels),
        "R² on these rows" if labels is None else "accuracy on these rows": score(summary.score),
        "largest detectable number": summary.bound,
        "state dimension": _with_interval(
            summary.state_dimension, summary.state_dimension_interval, summary.state_undetermined
        ),
        "combinations of inputs": _with_interval(
            summary.n_input_directions, summary.n_input_directions_interval, summary.input_directions_undetermined
        ),
        "ridge": summary.ridge,
    }
    if summary.scalar:  # one component, of dimension 1
        del facts["state dimension"], facts["largest detectable number"]
    coordinates: list[dict[str, object]] = []
    for j, (influence, row) in enumerate(zip(summary.influence, summary.sensitivity, strict=True), 1):
        most = [f"{summary.inputs[i]} ({row[i]:.2g})" for i in np.argsort(-row, kind="stable")[:6]]
        coordinates.append({"component": f"z{j}", "influence": influence, "moves most with": ", ".join(most)})
    weights: list[dict[str, object]] = []
    for j, (strength, row) in enumerate(zip(summary.input_spectrum, summary.input_weights, strict=False), 1):
        most = [f"{summary.inputs[i]} ({row[i]:+.2g})" for i in np.argsort(-np.abs(row), kind="stable")[:6]]
        weights.append(
            {"combination": j, "strength": strength, "inputs (weight per standard deviation)": ", ".join(most)}
        )
    networks = table(_stability_rows(summary.stability), "Count of every trained network", whole=True)
    shown = explained(
        " ".join([summary.wording, *facts]), ["sensitivity", "fold", "seed"] if networks else ["sensitivity"]
    )
    terms = [{"term": term, "meaning": meaning} for term, meaning in shown.items()]
    return [
        *table([{"": name, "value": cell(value)} for name, value in facts.items()], "The fit"),
        *table(weights, "Linear combinations of the inputs that y depends on"),
        *table(coordinates, "Components, most influential first"),
        *(Text(note, "note") for note in summary.notes),
        *details(f"Every trained network ({len(summary.stability)})", networks),
        *details("Terms", table(terms, "Terms on this page")),
    ]


def _stability_rows(trials: Iterable[Trial]) -> list[dict[str, object]]:
    """Return one row per depth, ridge and kind of training, with the count of every fold or seed."""
    order = sorted(trials, key=lambda t: (t.depth, -t.ridge, t.fold is None, t.seed, t.fold or 0))
    rows = []
    for (depth, ridge, whole), found in itertools.groupby(order, lambda t: (t.depth, t.ridge, t.fold is None)):
        group = list(found)
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


# films ----------------------------------------------------------------------------------------------------------------


def _films(summary: FilmSummary) -> tuple[str, str, str]:
    low, high = summary.interval
    reason = summary.reason.removeprefix("undetermined: ")
    if summary.undetermined:
        said = f"{_count(summary.state_dimension, 'state variable')}, not established"
        said = said if summary.state_dimension else "No state variables were established"
        return said, "warn", f"undetermined because {reason} (interval {low} to {high})"
    said = f"The films show {_count(summary.state_dimension, 'state variable')}"
    return said, _mark("good", low, high), f"interval {low} to {high}: {reason}"


def _films_tables(summary: FilmSummary) -> list[Block]:
    height, width, channels = summary.shape
    facts: dict[str, object] = {
        "films": summary.films,
        "frames": summary.frames,
        "pixels": f"{height} x {width}" + (f" x {channels}" if channels > 1 else ""),
        "windows of four frames": summary.windows,
        "frames apart": summary.stride,
        "encoder": summary.encoder,
        "coordinates needed": summary.needed if len(summary.unexplained_by_coordinates) else None,
    }
    networks = [
        {"network": i + 1, "state dimension": dimension, "unexplained on held-out films": _percent(left)}
        for i, (dimension, left) in enumerate(zip(summary.dimensions, summary.unexplained, strict=False))
    ]
    tried = [
        {"coordinates": int(k), "unexplained on held-out films": _percent(left)}
        for k, left in summary.unexplained_by_coordinates
    ]
    return [
        *table([facts], "The films"),
        *table(networks, "Networks"),
        *table(tried, "How well so many coordinates predict"),
        *(Text(note, "note") for note in summary.notes),
    ]


# a compression --------------------------------------------------------------------------------------------------------


def _compression(found: Compressed) -> tuple[str, str, str]:
    certificate = found.certificate
    after, before = certificate.parameters, certificate.parameters_before
    if not found.changed:
        return "Returned unchanged", "warn", found.reason or "nothing could be removed"
    said = f"{before:,} parameters became {after:,}, {before / max(after, 1):.3g} times fewer"
    if (accuracy := certificate.held_out_accuracy) is not None:
        said += f"; held-out accuracy {100 * accuracy.before:.2f} % before, {100 * accuracy.after:.2f} % after"
    most = max(certificate.outputs, key=lambda output: output.held_out.centered)
    what = (
        f"largest change on held-out samples (of {most.name})"
        if len(certificate.outputs) > 1
        else "change on held-out samples"
    )
    change = f"{what} {_percent(most.held_out.centered)} of the spread of the outputs"
    mark, verdict = ("good", "within") if certificate.met else ("bad", "NOT within")
    return said, mark, f"{change}, {verdict} the tolerance of {_percent(certificate.tol)}"


def _compression_tables(found: Compressed) -> list[Block]:
    certificate = found.certificate
    before, after = certificate.latency_before, certificate.latency
    costs = [
        {"": what, "before": f"{first:,}", "after": f"{then:,}", "ratio": first / max(then, 1)}
        for what, first, then in certificate.sizes
    ]
    times = {"before": f"{1e3 * before.minimum:.3f}", "after": f"{1e3 * after.minimum:.3f}"}
    costs.append({"": f"minimum latency in ms, batch {after.batch_size}", **times, "ratio": certificate.speedup})
    unsure = "" if certificate.speedup_certain else " (uncertain: the quartiles of the times overlap)"
    timed = (
        f"Latency: minimum of {after.repeats} interleaved rounds{unsure}, {_count(after.threads, 'thread')}, "
        f"{after.device}, {after.dtype}; quartiles {1e3 * before.low:.3f} to {1e3 * before.high:.3f} ms before, "
        f"{1e3 * after.low:.3f} to {1e3 * after.high:.3f} ms after. Subnormal values are set to 0 on both sides."
    )
    free = certificate.subnormals
    changes = []
    for i, output in enumerate(certificate.outputs):
        named = {"output": output.name} if output.name else {}
        accuracies = (certificate.accuracy, certificate.held_out_accuracy) if i == 0 else (None, None)
        changes.append(named | _change("all of x", output.on_x, accuracies[0]))
        changes.append(named | _change("held out", output.held_out, accuracies[1]))
    steps = []
    for i, step in enumerate(found.steps, 1):
        row = {"step": i, "kind": step.kind, "where": step.where or "the whole", "action": step.what}
        steps.append(row | {"change so far, %": 100 * step.change})
    left = [
        {"unchanged": part.name or "the module", "type": part.type, "because": part.reason} for part in found.skipped
    ]
    layers = _layer_rows(found.network)
    return [
        *table(steps, "Steps, in order", whole=True),
        *([Text(f"Not collapsed: {found.reason}")] if found.reason and found.changed else []),
        *table(costs, "Certificate: cost before and after"),
        Text(timed, "note"),
        *([Text(f"{free}. The ratio above does not include this.")] if free.count else []),
        *table(changes, f"Certificate: change, tolerance {_percent(certificate.tol)} of the spread"),
        *(Text(line, "note") for line in _bounds(found)),
        *table(left, f"Unchanged layers, and why ({len(left)})"),
        *details(f"Layers of the network returned ({len(layers)})", table(layers, "Layers")),
    ]


def _bounds(found: Compressed) -> Iterable[str]:
    certificate = found.certificate
    if found.changed:
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
    rows: list[dict[str, object]] = []
    for name, part in network.named_modules():
        if not list(part.children()):
            layer = f"{type(part).__name__}({part.extra_repr()})"
            count = sum(p.numel() for p in part.parameters())
            rows.append({"name": name or "the module", "layer": layer, "parameters": count})
    return rows


# symmetries -----------------------------------------------------------------------------------------------------------


def _symmetries(found: Symmetries) -> tuple[str, str, str]:
    said = f"{found.headline}; {len(found.held)} of {len(found.finite)} flips, swaps and reflections tested hold"
    settled = found.status in ("exact", "approximate") or (found.status == "none" and bool(found.held))
    mark = _mark("good" if settled else "warn", *found.interval)
    return said, mark, f"{STATUS_WORDS[found.status]}: {found.reason}"


def _symmetries_tables(found: Symmetries) -> list[Block]:
    pieces: list[dict[str, object]] = []
    for piece in found.pieces:
        row: dict[str, object] = {"kind": piece.kind, "what it does": piece.text, "how many": len(piece) or None}
        row |= {"in the model f": piece.in_model, "residual": piece.residual}
        pieces.append(row | _in_data(found, piece.change, piece.in_data))
    names = list(found.names)
    generators = [
        {"symmetry": i, "columns change by": field_text(field, names)}
        for i, field in enumerate(found.generators[:MAX_GENERATORS])
    ]
    finite = []
    for test in sorted(found.finite, key=lambda test: (test not in found.held, test.change)):
        line: dict[str, object] = {"transformation": test.text, "kind": test.kind, "status": test.verdict}
        line |= {"change of f": test.change, "distance to the data": test.distance}
        finite.append(line | _in_data(found, None, test.in_data))
    facts: dict[str, object] = {
        "samples": found.samples,
        "columns": len(names),
        "dimensions that x varies in": found.domain_dimension,
        "removed by symmetries": found.orbit_dimension,
        "left for f (dim Ω / G)": found.quotient_dimension,
        "rank of f at single samples": found.rank,
        "largest residual": found.residual,
        "error of f": found.rtol,
    }
    kept, more = finite[: len(found.held)], finite[len(found.held) :]
    beyond = [{"kind": piece.kind, "what it does": piece.text} for piece in found.beyond]
    left = found.left_out.shape[1]
    span = f"The data span {found.domain_dimension} of {len(names)} dimensions; the other {left} are not tested."
    return [
        Text(SYMMETRY_WORDS, "note"),
        *([Text(f"{found.error_text[0].upper()}{found.error_text[1:]}.", "note")] if found.learned else []),
        *table(pieces, "Infinitesimal symmetries, by what they do", whole=True),
        *table(beyond, "Only beyond the data, not counted"),
        *details(f"Every infinitesimal symmetry ({len(found.generators)})", table(generators, "One by one")),
        *table([facts], "Consequences for f"),
        *([Text(span, "note")] if left else []),
        *table(kept, f"Flips, swaps and reflections that leave f unchanged ({len(kept)})"),
        *details(f"Tested and rejected ({len(more)})", table(more, "Not symmetries")),
    ]


def _in_data(found: Symmetries, change: float | None, said: str) -> dict[str, object]:
    """Return what is said of the data in a row of a table: nothing of a function that is not learned."""
    if not found.learned:
        return {}
    moved = {} if change is None else {"change of f": None if math.isnan(change) else change}
    return moved | {"in the data": said}


def _mark(trust: str, low: int, high: int) -> str:
    """Return the mark of a count; a good count is neutral, not a tick or a warning, if other counts are possible."""
    return "neutral" if trust == "good" and low < high else trust


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"
