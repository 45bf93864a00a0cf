"""Sections of a page, and their construction from a profile, a history or a run."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bnrank._core import validation
from bnrank._core.validation import describe, expect
from bnrank.discovery.compression.result import Compressed
from bnrank.discovery.estimators.base import BottleneckEstimator
from bnrank.discovery.estimators.summary import Summary
from bnrank.discovery.films import FilmSummary, StateVariables
from bnrank.discovery.power_products import DimensionlessGroups
from bnrank.discovery.symmetry_search.result import Symmetries
from bnrank.measures.comparing import Comparison
from bnrank.reporting.charts.sweeps import failures, sweep_figures, sweep_text
from bnrank.reporting.tables import check_claim
from bnrank.theory.invariants import Monitor
from bnrank.theory.verdicts import Verdicts
from bnrank.training import Run, Sweep
from bnrank.training.history import is_finished
from bnrank.training.watching import WatchRecord

CURVES = {
    "loss": "loss C + λ‖θ‖²",
    "cost": "cost C",
    "parameter_norm": "‖θ‖²",
    "gradient_norm": "gradient norm",
    "balance_residual": "balance residual",
}
"""Title of every curve of a history."""
SPECTRA = {
    "activation_singular_values": "activations, singular values / √N",
    "preactivation_singular_values": "preactivations, singular values / √N",
    "weight_singular_values": "weights, singular values",
}
"""Kind and quantity of every spectrum of a profile."""

Discovered = Summary | FilmSummary | Compressed | Symmetries | Comparison | WatchRecord


@dataclass(frozen=True)
class Section:
    """One section of a page. Everything but the title is optional; the given parts are shown in this order.

    Parameters
    ----------
    title : str
        The heading.
    text : str
        Plain text; an empty line starts a new paragraph.
    claims : sequence
        Claims with ``name``, ``passed``, ``measured`` and ``expected``; shown as rows with pass or fail.
    verdicts : Verdicts, optional
        The result of `bnrank.check`: shown as a table, and a picture of the tightness of each inequality.
    found : fitted estimator, Summary, Compressed, Symmetries, Comparison or watch, optional
        A result of `bnrank.discovery`, `bnrank.compare` or `bnrank.watch`: shown as headline, plots, tables.
    rows : sequence of mappings
        A table, one mapping from column to value per row.
    figures : figure, sequence or mapping
        matplotlib figures or axes, or plotly figures; a mapping goes from caption to figure.
    texts : mapping
        Texts whose lines are kept, such as tracebacks, each collapsed under its title.
    history : Dataset or mapping
        Recorded values over (member, step[, layer, index]); a mapping from label to Dataset gives a selector.
    profile : Dataset or mapping
        Measurements per layer; a mapping from label to Dataset gives a selector.
    settings : mapping, dataclass or JSON str, optional
        Settings that produced the results. Default: the attribute ``settings`` of the history and of the profile.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, or a Dataset lacks required dimensions.

    Examples
    --------
    >>> Section("Ranks", rows=[{"layer": 1, "rank": 5}]).title
    'Ranks'
    """

    title: str
    text: str = ""
    _: dataclasses.KW_ONLY
    claims: Sequence[Any] = ()
    verdicts: Verdicts | None = None
    found: BottleneckEstimator | StateVariables | Discovered | None = None
    rows: Sequence[Mapping[str, object]] = ()
    figures: Any = ()
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    history: xr.Dataset | Mapping[str, xr.Dataset] | None = None
    profile: xr.Dataset | Mapping[str, xr.Dataset] | None = None
    settings: Any = None

    def __post_init__(self) -> None:
        expect(isinstance(self.title, str), "title", self.title, "a str", TypeError)
        for name, datasets in (("history", self.histories), ("profile", self.profiles)):
            dims = ("member", "step") if name == "history" else ("layer",)
            for dataset in datasets.values():
                got = f"dimensions {sorted(map(str, dataset.dims))}"
                expect(set(dims) <= set(dataset.dims), name, got, f"{dims} among them")
        if self.verdicts is not None and not isinstance(self.verdicts, Verdicts):
            raise TypeError(f"verdicts: got {describe(self.verdicts)}, expected what bnrank.check returns")
        if self.found is not None and found_in(self.found) is None:
            raise TypeError(f"found: got {describe(self.found)}, expected {_DISCOVERED}")
        validation.text(self.text, "text")
        object.__setattr__(self, "claims", tuple(validation.sequence(self.claims, "claims", "a sequence of claims")))
        object.__setattr__(self, "rows", tuple(validation.sequence(self.rows, "rows", "a sequence of mappings")))
        expect(isinstance(self.texts, Mapping), "texts", self.texts, "a mapping from title to text", TypeError)
        for title, whole in self.texts.items():
            validation.text(whole, f"texts[{title!r}]")
        for i, claim in enumerate(self.claims):
            check_claim(claim, f"claims[{i}]")
        for i, row in enumerate(self.rows):
            expect(isinstance(row, Mapping), f"rows[{i}]", row, "a mapping from column to value", TypeError)

    @property
    def histories(self) -> dict[str, xr.Dataset]:
        """The histories by label."""
        return _by_label(self.history, "history")

    @property
    def profiles(self) -> dict[str, xr.Dataset]:
        """The profiles by label."""
        return _by_label(self.profile, "profile")

    @property
    def all_settings(self) -> dict[str, dict[str, object]]:
        """Flattened settings by label: the given ones, else those of the Datasets; equal ones appear once."""
        if self.settings is not None:
            return {"settings": flatten_settings(self.settings)}
        found: dict[str, dict[str, object]] = {}
        for label, dataset in [*self.histories.items(), *self.profiles.items()]:
            settings = flatten_settings(dataset.attrs.get("settings"))
            if settings and settings not in found.values():
                found[label] = settings
        return found


def found_in(source: object) -> Discovered | None:
    """Return the result of discovery: a fitted estimator's summary, or the source itself; None for other types.

    Raises
    ------
    NotFittedError
        If the source is an estimator that is not fitted (a subclass of ValueError).
    """
    if not isinstance(source, BottleneckEstimator | StateVariables):
        return source if isinstance(source, Discovered) else None
    check_is_fitted(source, msg="source: got a %(name)s that is not fitted, expected it after fit")
    return source.summary()


def label_of(dataset: xr.Dataset, default: str) -> str:
    """Return the label of a Dataset (attribute ``name``, else ``title``)."""
    return str(dataset.attrs.get("name") or dataset.attrs.get("title") or default)


def bottleneck(profile: xr.Dataset) -> dict[str, Any]:
    """Return a profile's bottleneck summary: rank, start, end, gap and reason, None where undetermined.

    They are the attributes ``bottleneck_rank`` and so on.

    Examples
    --------
    >>> import xarray as xr
    >>> bottleneck(xr.Dataset(attrs={"bottleneck_rank": 2, "bottleneck_start": 3, "bottleneck_end": 9}))["end"]
    9
    """
    found = {key: profile.attrs.get(f"bottleneck_{key}") for key in ("rank", "start", "end", "gap", "reason")}
    return {key: getattr(value, "item", lambda value=value: value)() for key, value in found.items()}


def threshold_of(dataset: xr.Dataset) -> float:
    """Return the threshold above which a singular value counts: attribute ``atol``, else 0.1 (F4)."""
    return validation.number(np.asarray(dataset.attrs.get("atol", 0.1)).item(), "atol", 0.0)


def layer_labels(dataset: xr.Dataset) -> list[str]:
    """Return the labels of the layers: the number, and the name if there is one."""
    layers, names = dataset["layer"].values.tolist(), dataset.coords.get("layer_name")
    if names is None:
        return list(map(str, layers))
    return [f"{layer} ({name})" if name else str(layer) for layer, name in zip(layers, names.values, strict=True)]


def evenly(size: int, most: int) -> np.ndarray:
    """Return at most ``most`` evenly spaced positions of ``range(size)``, the first and the last among them."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).round().astype(int))


def flatten_settings(settings: object) -> dict[str, object]:
    """Return settings as one level of dotted names; accepts a mapping, a dataclass, a JSON str, an object or None.

    Examples
    --------
    >>> flatten_settings('{"steps": 10, "task": {"n": 300}}')
    {'steps': 10, 'task.n': 300}
    """
    if settings is None:
        return {}
    if isinstance(settings, str):
        try:
            settings = json.loads(settings)
        except json.JSONDecodeError:
            return {"settings": settings}
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        settings = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    if not isinstance(settings, Mapping):
        settings = dict(vars(settings)) if hasattr(settings, "__dict__") else {"settings": settings}
    flat: dict[str, object] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat.update({f"{key}.{inner}": entry for inner, entry in flatten_settings(value).items()})
        else:
            flat[str(key)] = value
    return flat


_SINGLE = str | xr.Dataset | Verdicts | Tensor | np.ndarray | WatchRecord | Monitor | Sweep


def sections_from(source: object) -> list[Section]:
    """Return the sections of a profile, a history, a run, verdicts, a discovery, a Section, several, or a mapping.

    Raises
    ------
    TypeError
        If the source is none of these.
    ValueError
        If a Dataset is neither a profile nor a history, an estimator is not fitted, or there is nothing to show.
    """
    if isinstance(source, Mapping) and not isinstance(source, xr.Dataset):
        sections = [_section(entry, str(name)) for name, entry in source.items()]
    elif isinstance(source, _SINGLE) or hasattr(source, "history") or is_finished(source):
        sections = [_section(source, None)]
    else:
        sections = [_section(entry, None) for entry in (source if isinstance(source, Iterable) else [source])]
    expect(sections, "source", "nothing to show", "at least one section")
    return sections


def _section(source: object, name: str | None) -> Section:
    if isinstance(source, Section):
        return source if name is None else dataclasses.replace(source, title=name)
    if isinstance(source, Verdicts):
        return Section(name or "Verdicts", verdicts=source)
    if isinstance(source, DimensionlessGroups):
        return Section(name or "Power products", text="\n\n".join(source.sentences), rows=source.rows)
    if (found := found_in(source)) is not None:
        return Section(name or _title(found), found=found)
    if isinstance(source, Sweep):
        texts = dict(failures(source))
        return Section(name or "Sweep", sweep_text(source), figures=sweep_figures(source), texts=texts)
    if isinstance(source, Monitor):
        figures = {"Drift of conserved quantities": source.plot()}
        return Section(name or "Conserved quantities", verdicts=source.verdicts(), figures=figures)
    if isinstance(source, xr.Dataset):
        label = name or label_of(source, "")
        if {"member", "step"} <= set(source.dims):
            return Section(label or "Training", history=source)
        if "layer" in source.dims:
            return Section(label or "Profile", profile=source)
        raise ValueError(
            f"source: got a Dataset with dimensions {sorted(map(str, source.dims))}, expected a profile (layer, ...) "
            "or a history (member, step, ...)"
        )
    if is_finished(source):
        return _of_finished(source, name)
    if (history := getattr(source, "history", None)) is not None:
        title = name or str(getattr(source, "name", "") or label_of(history, "Training run"))
        rows = certificates(source) if isinstance(source, Run) else ()
        return Section(title, history=history, settings=getattr(source, "settings", None), rows=rows)
    raise TypeError(
        f"source: got {validation.describe(source)}, expected a profile or history (xarray.Dataset), a run, a sweep, "
        "a watch, "
        f"verdicts, a finished network, {_DISCOVERED}, a Section, or several of these"
    )


def certificates(run: Run) -> list[dict[str, object]]:
    """Return a row per member of a run that was finished."""
    names = {
        "finished_loss": "finished loss",
        "stationarity": "relative gradient",
        "kind": "kind of point",
        "reason": "ended",
    }
    if not run.finished:
        return []
    columns = {text: run.summary[name].values.tolist() for name, text in names.items()}
    before = run.summary["loss"].values.tolist()
    return [
        {"member": i, "loss of the trained network": before[i]} | {text: values[i] for text, values in columns.items()}
        for i in range(run.members)
    ]


def _of_finished(done: Any, name: str | None) -> Section:
    """Return the section of what `bnrank.finish` returned: the certificate, kinks by layer, and new neurons."""
    at = done.stationarity
    lines = [line[0].upper() + line[1:] + "." for line in str(done).splitlines()]
    rows = []
    for layer, live in enumerate(at.live, 1):
        slopes = at.slopes[at.layers == layer]
        birth = next((b for b in at.births if b.layer == layer), None)
        rows.append(
            {
                "hidden layer": layer,
                "width": done.network.widths[layer],
                "live neurons": live,
                "kinks": len(slopes),
                "smallest derivative at a kink": float(slopes.min()) if len(slopes) else None,
                "largest": float(slopes.max()) if len(slopes) else None,
                "new neuron, found": None if birth is None else birth.lower,
                "at most": None if birth is None else birth.upper,
            }
        )
    return Section(name or f"Finished network: {at.kind}", "\n\n".join(lines), rows=rows)


_DISCOVERED = (
    "a fitted estimator of bnrank.discovery or its summary, what compress, symmetries, dimensionless_groups or compare "
    "returned"
)


def _title(found: Discovered) -> str:
    if isinstance(found, Summary):
        return f"What {found.estimator} found"
    if isinstance(found, FilmSummary):
        return "What StateVariables found"
    if isinstance(found, Comparison | WatchRecord):
        return str((found.data if isinstance(found, Comparison) else found.history).attrs["title"])
    return "Compression" if isinstance(found, Compressed) else "Symmetries"


def _by_label(value: object, name: str) -> dict[str, xr.Dataset]:
    if value is None:
        return {}
    if isinstance(value, xr.Dataset):
        return {label_of(value, name): value}
    if not isinstance(value, Mapping) or not all(isinstance(dataset, xr.Dataset) for dataset in value.values()):
        raise TypeError(f"{name}: got {validation.describe(value)}, expected an xarray.Dataset or a mapping to some")
    return {str(label): dataset for label, dataset in value.items()}
