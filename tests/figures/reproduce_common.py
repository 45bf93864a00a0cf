"""Planted figures for the tests of `bnrank reproduce`, of milliseconds each."""

import dataclasses
import re

import numpy as np
import plotly.graph_objects
import xarray as xr
from matplotlib.figure import Figure as Canvas

from bnrank.figures.harness.claims import Claim
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.reporting import Section


@dataclasses.dataclass(frozen=True)
class Settings:
    width: int = 3
    depths: tuple = ()
    end: float = 0.0


PASSED = Claim("one is one", True, 1.0, "1")
FAILED = Claim("one is two", False, 1.0, "2")


def drawn(points=3):
    canvas = Canvas(figsize=(4, 3))
    canvas.subplots().plot(np.random.default_rng(0).normal(size=points), np.arange(points), "o")
    return canvas


def history():
    loss = np.array([[2.0, 1.0, np.nan], [3.0, 2.5, 2.0]])
    coords = {"member": [0, 1], "step": [0, 5, 10], "status": ("member", ["diverged", "finished"])}
    return xr.Dataset(
        {"loss": (("member", "step"), loss)}, coords, attrs={"name": "planted", "settings": '{"lr": 0.1}'}
    )


def profile():
    attrs = {"title": "p", "rtol": 1e-6, "on": True, "nothing": None, "near": [0.5, 2.0], "nested": {"a": (1, "b")}}
    values = np.array([[2.0, np.nan], [1.0, 0.5]])
    return xr.Dataset(
        {"weight_singular_values": (("layer", "index"), values)},
        {"layer": [1, 2], "index": [1, 2], "layer_name": ("layer", ["in", "out"])},
        attrs=attrs,
    )


def rich_outcome():
    """Whatever a figure can have."""
    spectra = plotly.graph_objects.Figure(plotly.graph_objects.Scatter(x=[1, 2], y=[2, 1]))
    sections = (
        Section(
            "Rows", "First.\n\nSecond.", rows=[{"n": np.int64(3), "x": np.nan, "y": np.inf, "z": None, "t": (1, 2.5)}]
        ),
        Section("Data", history=history(), profile={"deep": profile(), "flat": profile()}, claims=[FAILED]),
        Section("Pictures", figures={"own": drawn(), "moving": spectra}, settings={"a": {"b": 1}}),
    )
    claims = (PASSED, Claim("not a number", False, np.float64("nan"), "< 1"), Claim("text", np.True_, "1, 2", "2"))
    return Outcome(
        "?", claims, sections, {"a-b": drawn(), "large": drawn(3000)}, {"data": "planted"}, captions={"large": "L"}
    )


def planted(name, make=None, **options):
    """A figure that counts in ``calls`` how often it was made."""
    calls = []

    def made(settings, folder, progress):
        calls.append(settings)
        return make(settings, folder, progress) if make else Outcome(name, (PASSED,))

    scales = {"quick": Settings(), "paper": Settings(width=100)}
    figure = Figure(
        name.upper(), f"{name}-name", f"{name} in words", "A paper", f"what {name} shows", scales, made, **options
    )
    return figure, calls


def change(figure, scale="quick", **changes):
    """Give a planted figure other settings."""
    figure.settings[scale] = dataclasses.replace(figure.settings[scale], **changes)


def raises(*_, **__):
    raise RuntimeError("no such luck")


def page_of(folder):
    return (folder / "quick" / "index.html").read_text()


def words(page):
    return re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", page))


def row_of(page, name):
    """Return the words of a figure's row in the overview."""
    table = page[page.index("<tbody>") : page.index("</tbody>")]
    return words(next(row for row in table.split("<tr>") if f"{name}-name" in row))


def part_of(page, name):
    """Return the part of the page on a figure."""
    return next(part for part in page.split("<section ") if part.startswith(f'id="{name.upper()}" '))
