"""Singular values by frequency: the picture, and what the page shows of them."""

import itertools
import re
import time

import numpy as np
import pytest
import xarray as xr

from bnrank.reporting import plots, report
from bnrank.reporting.charts import measured as charts
from bnrank.reporting.stills.frequencies import frequency_lines, frequency_spectra

from .browser import chromium, show, why_absent
from .conftest import make_profile
from .test_page import Page

NAMES, MULTIPLICITY = ["(0, 0)", "(0, 1)", "(1, 0)", "(1, 1)"], [1, 2, 2, 2]


def with_frequencies(kept=(("(0, 0)", 1, 1), ("(1, 0)", 2, 2)), depth=6):
    """A profile whose last layer has one channel only, and whose first layer is linear."""
    ds = make_profile(depth=depth)
    values = 0.01 * (1 + np.arange(depth * 12.0).reshape(depth, 4, 3)[:, :, ::-1]) / (depth * 12)
    for name, count, _ in kept:
        values[:, NAMES.index(name), :count] += 1 + 0.1 * NAMES.index(name)
    values[-1, :, 1:] = np.nan
    values[0] = np.nan
    channels = {name: count for name, count, _ in kept}
    return (
        ds.assign(
            frequency_singular_values=(("layer", "frequency", "channel"), values),
            frequency_rank=(("layer", "frequency"), np.where(np.isnan(values[..., 0]), np.nan, (values > 0.1).sum(2))),
        )
        .assign_coords(
            frequency=NAMES,
            multiplicity=("frequency", MULTIPLICITY),
            modulus=("frequency", [0.0, 1.0, 1.0, 2**0.5]),
        )
        .assign(kept_channels=("frequency", [channels.get(name, 0) for name in NAMES]))
        .assign_attrs(bottleneck_start=3, bottleneck_end=4, atol=0.1)
    )


def test_lines_are_sorted_named_and_cut():
    ds = with_frequencies()
    found = frequency_lines(ds)
    assert len(found) == 12
    assert [(line.label, line.channel, line.kept) for line in found[:3]] == [
        ("±(1, 0), s₁", 1, True),
        ("±(1, 0), s₂", 2, True),
        ("(0, 0)", 1, True),
    ]
    assert not any(line.kept for line in found[3:])
    highest = [float(np.nanmax(line.values)) for line in found[3:]]
    assert highest == sorted(highest, reverse=True)
    np.testing.assert_array_equal(found[1].values, ds.frequency_singular_values[:, 2, 1])
    assert [line.name for line in frequency_lines(ds, 2)] == ["±(1, 0)"] * 2
    ds["frequency_singular_values"][:, 3, 2] = np.nan
    assert len(frequency_lines(ds)) == 11


def test_the_picture_names_what_is_kept_and_keeps_names_apart():
    ds = with_frequencies(kept=(("(0, 0)", 3, 1), ("(1, 0)", 2, 2)))
    ax = plots.frequency_spectra(ds)
    assert plots.frequency_spectra is frequency_spectra
    assert len(ax.lines) == 12
    drawn = np.array(sorted(np.nan_to_num(line.get_ydata(), nan=-1).tolist() for line in ax.lines))
    expected = ds.frequency_singular_values.transpose("frequency", "channel", "layer").values.reshape(12, -1)
    np.testing.assert_array_equal(drawn, sorted(np.nan_to_num(expected, nan=-1).tolist()))
    texts = {text.get_text(): text.get_position() for text in ax.texts if text.get_text()}
    assert sorted(texts) == sorted(
        ["(0, 0), s₁", "(0, 0), s₂", "(0, 0), s₃", "±(1, 0), s₁", "±(1, 0), s₂", "threshold 0.1"]
    )
    heights = np.sort([y for _, y in texts.values()])
    low, high = ax.get_ylim()
    assert (np.diff(heights) > 0.05 * (high - low)).all()
    assert heights[-1] < high
    assert min(x for x, _ in texts.values()) > ds.layer.values[-1]
    assert ax.get_xlim()[1] > max(x for x, _ in texts.values())
    colors = {line.get_color() for line in ax.lines}
    assert len(colors) == 3  # |w| = 0, 1, sqrt 2
    assert len([line for line in ax.lines if line.get_linewidth() > 1.5]) == 5
    (key,) = [other for other in ax.figure.axes if other is not ax]
    assert [label.get_text() for label in key.get_yticklabels()] == ["0", "1", "1.41"]
    assert all((ax.get_xlabel(), ax.get_ylabel(), key.get_ylabel()))
    assert max(ax.get_xticks()) <= ds.layer.values[-1]


def test_names_of_low_lines_stay_in_the_axes_and_come_before_higher_lines_that_are_not_kept():
    ds = with_frequencies(kept=(("(0, 0)", 3, 1), ("(1, 0)", 3, 2)))
    ds["frequency_singular_values"] *= 0.15
    ds["frequency_singular_values"][:, 3] += 3.0
    assert [line.kept for line in frequency_lines(ds)] == [True] * 6 + [False] * 6
    ax = plots.frequency_spectra(ds)
    heights = np.sort([text.get_position()[1] for text in ax.texts if text.get_text()])
    assert len(heights) == 7
    assert heights[0] >= 0
    assert (np.diff(heights) > 0.05 * ax.get_ylim()[1]).all()


def test_without_a_bottleneck_nothing_is_named_and_many_frequencies_share_a_key():
    ds = with_frequencies(kept=())
    ds = ds.drop_vars("kept_channels")
    ds.attrs.pop("atol")
    ax = plots.frequency_spectra(ds, max_lines=7)
    assert len(ax.lines) == 7
    assert not ax.texts
    many = xr.concat([ds[["frequency_singular_values"]]] * 4, "frequency", coords="minimal", join="override")
    many = many.assign_coords(modulus=("frequency", np.arange(16.0)), frequency=[str(i) for i in range(16)])
    ax = plots.frequency_spectra(many.assign_coords(multiplicity=("frequency", [1] * 16)))
    assert len({line.get_color() for line in ax.lines}) == 16


@pytest.mark.parametrize(
    ("change", "arguments", "match"),
    [
        (lambda ds: ds.drop_vars("frequency_singular_values"), {}, "frequency_singular_values: not in the Dataset"),
        (lambda ds: ds.assign(frequency_singular_values=ds.frequency_rank), {}, "expected .'layer', 'frequency', 'cha"),
        (lambda ds: ds, {"max_lines": 0}, "max_lines: got 0"),
    ],
)
def test_bad_input_is_named(change, arguments, match):
    with pytest.raises(ValueError, match=match):
        plots.frequency_spectra(change(with_frequencies()), **arguments)


def test_what_the_page_shows(tmp_path, monkeypatch):
    ds = with_frequencies()
    page = Page(report(ds, tmp_path / "p.html"))
    lines, ranks = (
        c["figure"] for c in page.groups("section-1-profile")[0]["charts"] if "frequency" in str(c["figure"])
    )
    names = [label["text"] for label in lines["layout"]["annotations"]]
    assert sorted(names) == ["(0, 0)", "±(1, 0), s₁", "±(1, 0), s₂"]
    *_, third, second, first = lines["data"]
    assert [line["line"]["width"] for line in (first, second, third, lines["data"][-4])] == [2.6, 2.6, 2.6, 1]
    assert "frequency ±(1, 0)<br>s<sub>1<" in first["hovertemplate"]
    assert first["y"][0] is None
    assert first["y"][1] == pytest.approx(float(ds.frequency_singular_values[1, 2, 0]), rel=1e-4)
    assert len(lines["data"]) == 12
    assert re.findall(r"\|w\| = ([\d.]+)", page.text) == ["0", "1", "1.414"]
    assert [row[0] for row in ranks["data"][0]["customdata"]] == ["(0, 0)", "±(0, 1)", "±(1, 0)", "±(1, 1)"]
    assert ranks["data"][0]["z"][2] == [None, 2, 2, 2, 2, 1]
    assert "(0, 0): 1; ±(1, 0): 2" in page.text
    assert "kept_channels" not in page.text
    monkeypatch.setattr("bnrank.reporting.charts.measured.MAX_LINES", 2)
    monkeypatch.setattr("bnrank.reporting.charts.measured.MAX_FREQUENCIES", 3)
    lines, ranks = (c for c in charts.profile_view({"a": ds}).groups[0].charts if "frequency" in c.title)
    assert (len(lines.figure.data), len(ranks.figure.data[0].z)) == (2, 3)
    assert "The 2 of 12 lines" in lines.note
    assert ranks.note == "The 3 lowest of 4 frequencies."
    assert not [c for c in charts.profile_view({"b": make_profile()}).groups[0].charts if "frequency" in c.title]


@pytest.mark.browser
@pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present")
def test_the_page_draws_them_on_both_scales(tmp_path):
    page = report({"plain": make_profile(depth=6), "by frequency": with_frequencies()}, tmp_path / "p.html")
    with chromium() as driver:
        show(driver, 1180, "dark")
        driver.get(page.as_uri())
        end = time.monotonic() + 20
        names = (
            'return [...document.querySelectorAll(\'#section-2-profile [aria-label="Singular values by frequency"]'
            " .annotation-text')].map((e) => e.textContent)"
        )
        while not driver.execute_script(names):
            assert time.monotonic() < end
            time.sleep(0.05)
        for scale in ("linear", "log"):
            driver.execute_script(
                "const e = document.querySelector('#section-2-profile select'); e.value = arguments[0];"
                "e.dispatchEvent(new Event('change'))",
                ("linear", "log").index(scale),
            )
            assert sorted(driver.execute_script(names)) == ["(0, 0)", "±(1, 0), s₁", "±(1, 0), s₂"]
            boxes = driver.execute_script(names.replace("e.textContent", "e.getBoundingClientRect().toJSON()"))
            heights = sorted(box["top"] for box in boxes)
            assert all(b - a > 8 for a, b in itertools.pairwise(heights))
            card = driver.execute_script(
                "return document.querySelector('#section-2-profile [aria-label=\"Singular values by frequency\"]')"
                ".closest('.card').getBoundingClientRect().right"
            )
            assert all(box["right"] < card for box in boxes)
        ranks = "return document.querySelectorAll('#section-{}-profile [aria-label=\"Rank by frequency\"]').length"
        assert [driver.execute_script(ranks.format(i)) for i in (1, 2)] == [0, 1]
        assert driver.get_log("browser") == []
