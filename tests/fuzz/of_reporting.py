"""Valid calls of pages, plots and figures: what single functions need beside the values by name."""

import dataclasses

import pandas as pd

import bnrank

from .made import Values, cnn, new, normal, profile, regressor, swept, verdicts


@dataclasses.dataclass(frozen=True)
class Settings:
    width: int = 3


OWN: dict[str, Values] = {
    "bnrank.Section": {"title": lambda: "Title"},
    "bnrank.report": {"source": verdicts, "path": lambda: new("page.html")},
    "bnrank.figures.Claim": {
        "name": lambda: "rank",
        "passed": lambda: True,
        "measured": lambda: 1.0,
        "expected": lambda: "1",
    },
    "bnrank.figures.Figure": {
        **{name: (lambda name=name: name) for name in ("id", "name", "title", "source", "expected")},
        "settings": lambda: {"quick": Settings()},
        "make": lambda: lambda settings, out, progress: None,
    },
    "bnrank.figures.duration": {"seconds": lambda: 3.0},
    "bnrank.figures.find": {"name": lambda: "F11"},
    "bnrank.plots.bottleneck_spectra": {"top": lambda: 3},
    "bnrank.plots.discovered": {"found": lambda: regressor().summary()},
    "bnrank.plots.frequency_spectra": {"profile": lambda: bnrank.profile(cnn(), normal(4, 1, 6))},
    "bnrank.plots.norm_versus_depth": {"ranks": lambda: [1, 1, 1, 1], "costs": lambda: [0.1, 0.1, 0.1, 0.1]},
    "bnrank.plots.phase_diagram": {
        "results": lambda: pd.DataFrame({"a": [1, 2], "b": [1, 1], "c": [0.1, 0.2]}),
        "x": lambda: "a",
        "y": lambda: "b",
        "value": lambda: "c",
        "axes": lambda: None,
    },
    "bnrank.plots.plateaus": {"top": lambda: 3},
    "bnrank.plots.spectra_over_steps": {"layer": lambda: 1},
    "bnrank.plots.weight_spectra": {"trials": lambda: [profile()]},
    "bnrank.reporting.follow": {
        "folder": lambda: swept().folder.path,
        "path": lambda: new("page.html"),
        "max_minutes": lambda: 0.0,
    },
    "bnrank.reporting.tables.claim_rows": {"claims": lambda: []},
    "bnrank.reporting.tables.noted_rows": {"name": lambda: "skipped"},
    "bnrank.reporting.tables.typeset": {"text": lambda: "||theta||^2"},
}

OPTIONAL: dict[str, Values] = {}
"""Values of optional arguments that the valid call leaves out."""
