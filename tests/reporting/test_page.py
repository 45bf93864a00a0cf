import json
import re
import resource
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import plotly.graph_objects
import plotly.offline
import pytest
import torch
import xarray as xr

import bnrank
from bnrank import measures
from bnrank.reporting import Section, plots, report, tables
from bnrank.reporting.charts import measured as charts
from bnrank.reporting.packing import packed, plotly_js, unpacked
from bnrank.reporting.sections import CURVES, SPECTRA, flatten_settings

from .conftest import make_history, make_profile

EVIL = "</script><script>alert('x')</script><img src=http://evil.example/x onerror=alert(1)>&\u2028"


class Page(HTMLParser):
    """Tags with attributes, visible text, and the contents of style and script elements."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.words, self.raw, self._inside = [], [], [], None
        self.source = Path(path).read_text(encoding="utf-8")
        self.feed(self.source)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = self.get_starttag_text() if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        (self.raw if self._inside else self.words).append(data)

    @property
    def data(self):
        return json.loads(self.data_text)["views"]

    @property
    def data_text(self):
        found = re.search(r'id="bnrank-data">(.*?)</script>', self.source, re.S)  # absent without plots
        return unpacked(found[1]) if found else '{"views": {}}'

    def groups(self, key):
        return self.data[key]["groups"]


def chart(group, place):
    """A chart of a group, and its changes by target."""
    found = group["charts"][place]
    return found, {change["target"]: change["values"] for change in found["changes"]}


def hover_texts(value):
    """All texts of figures that plotly reads as markup."""
    if isinstance(value, dict):
        keys = ("text", "hovertemplate", "name", "hovertext", "ticktext", "customdata")
        return [entry for key, part in value.items() for entry in ([part] if key in keys else hover_texts(part))]
    return [entry for part in value for entry in hover_texts(part)] if isinstance(value, list) else []


def test_the_page_makes_no_web_requests(tmp_path, run, claims, profile):
    page = Page(report(run, tmp_path / "p.html", claims=claims, figures=plots.bottleneck_spectra(profile)))
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
        assert tag not in ("iframe", "object", "embed", "base")
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    own = page.data_text + "".join(raw for raw in page.raw if raw != plotly_js())
    assert len(own) < 2_000_000
    assert not re.search(r"https?://|@import|fetch\(|XMLHttpRequest|import\(", own)


def test_the_page_is_well_formed_and_says_what_made_it(tmp_path, run, profile):
    page = Page(report([run, profile], tmp_path / "p.html", notes="First.\n\nSecond."))
    names = [tag for tag, _ in page.tags]
    assert page.source.startswith("<!doctype html>")
    assert ("html", {"lang": "en"}) in page.tags
    for tag in ("title", "h1", "main", "header", "footer"):
        assert names.count(tag) == 1 or tag == "header"
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for words in ("First.", "Second.", "optimizer", "adam", "norm1", "not positively homogeneous", "jacobian_rtol"):
        assert words in page.text
    for words in ("bottleneck rank", "diverged", "layers.12", "taken as it is"):
        assert words in page.text


def test_profile_history_run_sections_and_mappings_are_accepted(tmp_path, history, profile, run):
    for source, kinds in (
        (profile, {"profile"}),
        (history, {"history"}),
        (run, {"history"}),
        (Section("S", rows=[{"a": 1}]), set()),
        ([history, profile], {"history", "profile"}),
        ({"one": run, "two": Section("x", profile={"a": profile, "b": profile})}, {"history", "profile"}),
    ):
        page = Page(report(source, tmp_path / "p.html"))
        assert {entry["kind"] for entry in page.data.values()} == kinds
    assert "one" in page.text
    assert "two" in page.text
    assert re.findall(r"<select data-group>(.*?)</select>", page.source) == [
        '<option value="0">a</option><option value="1">b</option>'
    ]
    assert len(page.groups("section-2-profile")) == 2


@pytest.mark.parametrize("source", [3, "page", None, {"a": 3}, [object()]])
def test_other_sources_are_refused(tmp_path, source):
    with pytest.raises(TypeError, match="source: got"):
        report(source, tmp_path / "p.html")
    assert not list(tmp_path.iterdir())


def test_bad_sections_are_refused(tmp_path, history, profile):
    with pytest.raises(ValueError, match="expected a profile"):
        report(xr.Dataset({"a": ("x", [1.0])}), tmp_path / "p.html")
    with pytest.raises(ValueError, match="nothing to show"):
        report([], tmp_path / "p.html")
    with pytest.raises(ValueError, match="history: got dimensions"):
        Section("s", history=profile)
    with pytest.raises(TypeError, match=r"claims\[0\]"):
        Section("s", claims=["no claim"])
    with pytest.raises(TypeError, match="profile: got"):
        Section("s", profile=3)
    with pytest.raises(TypeError, match=r"figures\['Figure'\]"):
        report(history, tmp_path / "p.html", figures=3)


def test_the_numbers_are_the_datasets(tmp_path, history, profile):
    page = Page(report([history, profile], tmp_path / "p.html"))
    (shown,) = page.groups("section-1-history")
    cost = list(CURVES).index("cost")
    np.testing.assert_allclose(chart(shown, 0)[1]["y"][cost][1], history["cost"].values[1], rtol=1e-4)
    assert shown["steps"] == history["step"].values.tolist()
    spectra = chart(shown, 1)[1]["y"]  # [step][member][index, the smallest first][layer]
    for at, layer in ((0, 0), (60, 2), (119, 5)):
        values = history["weight_singular_values"].values[0, at, layer, :10]
        drawn = [line[layer] for line in reversed(spectra[at][0]) if line[layer] is not None]
        np.testing.assert_allclose(drawn, values[np.isfinite(values)], rtol=1e-3)
    (shown,) = page.groups("section-2-profile")
    for place, name in enumerate(SPECTRA):
        figure = shown["charts"][place]["figure"]
        rows = np.array([line["y"] for line in reversed(figure["data"])], dtype=float).T
        np.testing.assert_allclose(rows, profile[name].values[:, :10], rtol=1e-4)
        assert [figure["layout"]["shapes"][0][end] for end in ("x0", "x1")] == [3.5, 10.5]
    band = shown["charts"][-1]["figure"]["data"][1]["y"]
    np.testing.assert_allclose(band, profile["jacobian_singular_values"].max("sample")[:10], rtol=1e-4)


def test_zero_and_tiny_values_are_kept_as_they_are(tmp_path, history, profile):
    profile["weight_singular_values"][2, 8:10] = [3e-11, 0.0]
    history["weight_singular_values"][0, -1, 2, 6:8] = [3e-11, 0.0]
    page = Page(report([history, profile], tmp_path / "p.html"))
    lines = chart(page.groups("section-1-history")[0], 1)[1]["y"][-1][0][::-1]
    assert [lines[6][2], lines[7][2]] == [3e-11, 0]
    lines = page.groups("section-2-profile")[0]["charts"][2]["figure"]["data"][::-1]
    assert [lines[8]["y"][2], lines[9]["y"][2]] == [3e-11, 0]


def test_nan_and_infinity_become_null(tmp_path, history):
    history["loss"].values[0, 3] = np.inf
    (shown,) = Page(report(history, tmp_path / "p.html")).groups("section-1-history")
    loss = chart(shown, 0)[1]["y"][0]
    assert loss[0][3] is None
    assert loss[2][-1] is None
    spectra = chart(shown, 1)[1]["y"]
    assert {value for line in spectra[-1][2] for value in line} == {None}  # member 2 has diverged: nothing to draw
    assert shown["ends"] == [119, 119, 40, 119]
    assert shown["stopped"][2].startswith("member 2 stopped (diverged)")


def test_a_history_without_spectra_and_one_all_nan(tmp_path, history):
    for dataset in (history.drop_vars("weight_singular_values"), history * np.nan):
        page = Page(report(dataset, tmp_path / "p.html"))
        (shown,) = page.groups("section-1-history")
        assert shown["steps"] == []
        assert "Left out" not in page.text
        assert len(shown["charts"]) == 1
        assert ">loss C" in page.source


def test_claims_show_pass_and_fail(tmp_path, claims, profile):
    page = Page(report(profile, tmp_path / "p.html", claims=claims))
    assert "Claims: 1 of 3 pass" in page.text
    assert re.search(r"mark good.>pass.*rank 4 in the middle", page.source)
    assert re.search(r"mark bad.>fail.*nonlinearity vanishes.*0\.3125.*below 0\.05", page.source)
    assert re.search(r"<td>not decided.*slope equals rank", page.source)


def test_hostile_text_is_only_text(tmp_path, profile, history):
    names = profile.assign_coords(layer_name=("layer", [EVIL] * 13))
    names.attrs |= {"settings": json.dumps({EVIL: EVIL})}
    names = names.drop_dims("skipped").assign_coords(
        {f"skipped_{key}": ("skipped", [EVIL]) for key in ("name", "reason")}
    )
    names.attrs[EVIL] = EVIL
    history = history.assign_coords(status=("member", [EVIL] * 4))
    claim = SimpleNamespace(name=EVIL, passed=True, measured=EVIL, expected=EVIL)
    figure = plotly.graph_objects.Figure(plotly.graph_objects.Scatter(y=[1, 2], name=EVIL))
    section = Section(
        EVIL,
        EVIL,
        profile={EVIL: names, EVIL + "2": names},
        rows=[{EVIL: EVIL}],
        claims=[claim],
        figures={EVIL: figure},
    )
    page = Page(report([section, history], tmp_path / "p.html", title=EVIL, notes=EVIL))
    assert [tag for tag, _ in page.tags].count("script") == 3
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [a for _, a in page.tags if "onerror" in a]
    own = page.source.replace(plotly_js(), "")
    assert "<script>alert" not in own
    assert not re.search(
        r"<(?!/?(?:sub|sup|br|extra)\b)",
        json.dumps(hover_texts({k: v for k, v in page.data.items() if "figure" not in k})),
    )
    for name in ("bnrank-data", "bnrank-plotly"):
        assert "<" not in re.search(rf'id="{name}">(.*?)</script>', page.source, re.S)[1]
    names = page.groups("section-1-profile")[0]["charts"][0]["figure"]["data"][0]["text"]
    assert names[0] == f"layer 1 ({escape(EVIL, quote=False)})"  # and nothing is lost
    assert EVIL.split("&")[0] in page.text


def test_placeholders_in_text_stay_text(tmp_path):
    page = Page(report(Section("{{plotly}} {{data}}", "{{script}}"), tmp_path / "p.html"))
    assert "{{plotly}} {{data}}" in page.text
    assert "{{script}}" in page.text


def test_thinning_keeps_the_ends_and_says_what_was_left_out(tmp_path):
    long = make_history(steps=1500, members=1)
    (shown,) = charts.history_view({"long": long}).groups
    curves = shown.charts[0].figure.data[0].x
    assert len(shown.steps) == charts.MAX_STEPS
    assert len(curves) == charts.MAX_CURVE_STEPS
    for steps in (shown.steps, curves):
        assert (steps[0], steps[-1]) == (0, long["step"].values[-1])
    assert "the spectra show 200 of 1500 recorded steps" in shown.notes
    assert "the curves show 500 of 1500 recorded steps" in shown.notes
    wide = xr.concat([make_history(steps=20, members=1)] * 50, "member")
    (shown,) = charts.history_view({"wide": wide}).groups
    assert len(shown.controls[0].options) == charts.MAX_MEMBERS
    assert "32 of 50 members are shown, evenly spaced" in shown.notes
    assert charts.spectra_budget([long]) == charts.MAX_STEPS
    assert charts.spectra_budget([wide] * 20) < charts.MAX_STEPS


def test_steps_without_spectra_are_no_slider_positions(history):
    history["weight_singular_values"][:, 1::2] = np.nan
    assert charts.history_view({"h": history}).groups[0].steps == history["step"].values[::2].tolist()


def test_a_history_without_steps_and_a_profile_without_names(tmp_path, history, profile):
    empty = history.isel(step=slice(0, 0))
    page = Page(report([empty, profile.drop_vars("layer_name")], tmp_path / "p.html"))
    assert chart(page.groups("section-1-history")[0], 0)[0]["figure"]["data"][0]["x"] == []
    lines = page.groups("section-2-profile")[0]["charts"][0]["figure"]["data"]
    assert lines[0]["text"] == [f"layer {i}" for i in range(1, 14)]


def test_what_the_measures_return_is_understood(tmp_path):
    net = bnrank.MLP([6, 8, 8, 8, 3], bias=False, seed=0)
    with torch.no_grad():
        for weight in net.weights:
            weight.copy_(torch.eye(*weight.shape) * (torch.arange(weight.shape[1]) < 2))  # two dimensions pass
    measured = measures.profile(net, torch.rand(20, 6))
    page = Page(report(measured, tmp_path / "p.html"))
    shapes = page.groups("section-1-profile")[0]["charts"][2]["figure"]["layout"]["shapes"]
    assert [shapes[0][end] for end in ("x0", "x1")] == [0.5, 4.5]
    assert shapes[1]["y0"] == measured.attrs["atol"]
    assert re.search(
        r"Bottleneck profile layers bottleneck rank from layer to layer .* profile of MLP 4 2 1 4", page.text
    )
    bands = [ax.patches[0] for ax in plots.bottleneck_spectra(measured)]  # polygons or rectangles, as matplotlib has it
    outlines = [band.get_patch_transform().transform_path(band.get_path()) for band in bands]
    assert [outline.get_extents().width for outline in outlines] == [4, 4, 4]


def test_a_profile_leads_with_its_bottleneck_and_the_dimensions_that_its_layers_use(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(300, 2) @ torch.eye(2, 8)
    net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    for layer in net:
        torch.nn.init.orthogonal_(layer.weight, gain=0.4)  # too small for a bottleneck
    linear = "layers use 2 of 8 dimensions at 95 percent of variance."
    none = "No bottleneck found (no layer has a clear gap)"
    assert f"{none}: {linear}" in Page(report(bnrank.profile(net, x), tmp_path / "a.html")).text
    with torch.no_grad():
        for layer in net:
            layer.weight.copy_(torch.diag(torch.tensor([1.0, 1.0, 1.0, 0, 0, 0, 0, 0])))
    passing = bnrank.profile(net, x)
    assert f"Bottleneck of rank 3 from layer 1 to layer 3: {linear}" in Page(report(passing, tmp_path / "b.html")).text
    only = bnrank.profile(net, x, what="activations")  # a bottleneck is sought in the weights, not measured here
    assert f" {linear.capitalize()}" in Page(report(only, tmp_path / "c.html")).text
    assert tables.headline(bnrank.profile(net, x, what="weights")) == "Bottleneck of rank 3 from layer 1 to layer 3."
    net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 8))
    with torch.no_grad():
        net[0].weight.copy_(0.4 * torch.eye(4, 8))
        net[1].weight.copy_(0.4 * torch.eye(8, 4))
    page = Page(report({"one": bnrank.profile(net, x), "two": passing}, tmp_path / "d.html"))
    mixed = "layers use 2 dimensions at 95 percent of variance, 25 to 50 percent of their units."
    assert f"one {none}: {mixed}" in page.text
    assert tables.headline(bnrank.profile(net, x[:1])) == f"{none}."


def test_the_map_of_all_layers_shows_powers_of_ten_of_each_layers_largest():
    measured = make_profile(depth=5)
    found = next(c for c in charts.profile_view({"a": measured}).groups[0].charts if c.title.endswith("every layer"))
    (change,) = found.changes
    assert found.controls[0].options == ["activations", "preactivations", "weights"]
    for (drawn,), name in zip(change.values, SPECTRA, strict=True):
        values = measured[name].values
        shown = np.array(drawn, dtype=float)
        assert np.array_equal(np.isnan(shown), np.isnan(values))
        expected = np.clip(np.log10(values / np.nanmax(values, axis=1, keepdims=True)), -charts.DECADES, 0)
        assert shown == pytest.approx(expected, abs=6e-3, nan_ok=True)
    assert np.array_equal(np.array(found.figure.data[0].z, dtype=float), np.array(change.values[0][0], float), True)


def test_charts_of_one_point_are_left_out():
    net = torch.nn.Linear(5, 1)
    found = charts.profile_view({"a": bnrank.profile(net, torch.randn(20, 5))}).groups[0].charts
    assert [c.title for c in found] == ["Singular values of every layer"]
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    assert len(charts.profile_view({"a": bnrank.profile(net, torch.randn(20, 5))}).groups[0].charts) == 6


def test_a_page_stays_small(tmp_path):
    histories = {f"depth {depth}": make_history(depth=depth, members=8, steps=400) for depth in (4, 12, 24)}
    profiles = {f"depth {depth}": make_profile(depth=depth) for depth in (4, 12, 24)}
    path = report(Section("F4", history=histories, profile=profiles), tmp_path / "p.html")
    assert path.stat().st_size < 4_000_000
    plain = report(make_profile(), tmp_path / "plain.html")
    assert plain.stat().st_size < 2_000_000
    matrices = {
        f"layers.{i}.weight": torch.randn(60, 60, generator=torch.Generator().manual_seed(i)) for i in range(300)
    }
    large = report(bnrank.profile(matrices), tmp_path / "large.html")
    assert large.stat().st_size < 2_000_000


def test_packed_text_is_smaller_and_comes_back():
    script = plotly.offline.get_plotlyjs()
    assert unpacked(plotly_js()) == script
    assert len(plotly_js()) < 0.4 * len(script)
    for text in ("", "a", "<!--<script>", "₊ü" * 300, *("x" * n for n in range(12))):
        assert unpacked(packed(text)) == text
        assert "<" not in packed(text)


def test_member_labels_name_what_differs(history):
    members = charts.history_view({"h": history}).groups[0].controls[0].options
    assert members[1] == "member 1, seed 1, lr 0.0015, finished"  # one ridge for all


def test_matplotlib_axes_and_figures_are_drawn_as_svg(tmp_path, profile):
    ax = plots.norm_versus_depth([4, 6], [8.0, 12.0], [2, 2], [0.0, 0.0])
    section = Section("s", figures={"F4a <norm>": ax, "F1": plots.bottleneck_spectra(profile), "fig": ax.figure})
    page = Page(report(section, tmp_path / "p.html"))
    pictures = [a for tag, a in page.tags if tag == "img"]
    assert [a["alt"] for a in pictures] == ["F4a <norm>", "F1", "fig"]
    assert all(a["src"].startswith("data:image/svg+xml;base64,") for a in pictures)


def test_title(tmp_path, history, claims):
    assert "<title>depth 6</title>" in report(history, tmp_path / "p.html", claims=claims).read_text(encoding="utf-8")
    assert "<title>A &amp; B</title>" in report(history, tmp_path / "p.html", title="A & B").read_text(encoding="utf-8")


def test_the_same_source_gives_the_same_page(tmp_path, run, profile):
    first, second = (
        report(run, tmp_path / f"{i}.html", figures=plots.bottleneck_spectra(profile)).read_bytes() for i in (1, 2)
    )
    assert first == second


def test_folders_are_made_and_the_page_replaces_the_old_one(tmp_path, profile):
    path = tmp_path / "new" / "folder" / "p.html"
    assert report(profile, str(path)) == path
    path.write_text("old")
    assert report(profile, path).read_text(encoding="utf-8").startswith("<!doctype")
    assert [entry.name for entry in path.parent.iterdir()] == ["p.html"]


def test_an_unwritable_path_is_named(tmp_path, profile):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "p.html", tmp_path / "file" / "deeper" / "p.html", tmp_path / ("n" * 300)):
        with pytest.raises(
            ValueError,
            match=f"path: got .*{path.name[:20]}.*expected a (file|path) ",
        ):
            report(profile, path)
    with pytest.raises(ValueError, match="which is a folder, device or pipe"):
        report(profile, tmp_path)
    with pytest.raises(TypeError, match="path: got"):
        report(profile, 3)


def test_a_failed_write_leaves_the_old_page_and_no_rest(tmp_path, profile):
    path = report(profile, tmp_path / "p.html")
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (1_000_000, limits[1])
    )  # the write stops in the middle, as on a full disk
    try:
        with pytest.raises(ValueError, match=r"path: got .*p\.html.*File too large"):
            report(profile, path, title="another")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.html"]


def test_flatten_settings():
    assert flatten_settings('{"a": {"b": 1}, "c": []}') == {"a.b": 1, "c": []}
    assert flatten_settings("not json") == {"settings": "not json"}
    assert flatten_settings(None) == {}
    assert flatten_settings(SimpleNamespace(steps=3)) == {"steps": 3}


def test_settings_of_several_histories_appear_once_if_equal(history):
    same = Section("s", history={"a": history, "b": history})
    assert list(same.all_settings) == ["a"]
    other = history.assign_attrs(settings='{"steps": 1}')
    assert list(Section("s", history={"a": history, "b": other}).all_settings) == ["a", "b"]


@pytest.mark.parametrize("name", ["verdicts", "found", "history"])
def test_text_in_place_of_a_result_is_quoted_in_the_error(name):
    with pytest.raises(TypeError, match=rf"^{name}: got '' \(str\), expected"):
        Section("A", **{name: ""})


def test_text_in_place_of_a_figure_is_quoted_in_the_error(tmp_path):
    with pytest.raises(TypeError, match=r"^figures\['Figure'\]: got 'a.png' \(str\), expected"):
        report(Section("A", figures="a.png"), tmp_path / "a.html")


def test_rows_and_claims_may_be_iterated_only_once():
    section = bnrank.Section("A section", rows=({"row": i} for i in range(3)), claims=iter(()))
    assert [row["row"] for row in section.rows] == [0, 1, 2]
    assert list(section.claims) == []
