"""The pages of what discovery found: a fit, a compression, symmetries."""

import dataclasses
import re
from html import escape

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.metrics import confusion_matrix, r2_score
from torch import nn

from bnrank import compress
from bnrank._core.text import cell
from bnrank.discovery import BottleneckAutoencoder, BottleneckClassifier, BottleneckRegressor, symmetries
from bnrank.discovery.compression.certificate import Accuracy
from bnrank.discovery.estimators.terms import TERMS, explained
from bnrank.reporting import Section, report
from bnrank.reporting.charts import discovery as charts
from bnrank.reporting.charts.parts import MUTED

from .browser import why_absent
from .conftest import make_summary
from .test_page import EVIL, Page

KEY = "section-1-found"


def read(source, folder):
    page = Page(report(source, folder / "found.html"))
    return page, {"kind": page.data[KEY]["kind"]} | {entry["title"]: entry for entry in titled(page)}


def titled(page):
    """The charts of what was found, each with its title and its changes by target."""
    titles = re.findall(r'<div class="plot[^>]*aria-label="(.*?)">', page.source)
    entries = [entry for key, view in page.data.items() for group in view["groups"] for entry in group["charts"]]
    return [
        entry
        | {"title": title}
        | {change["target"].replace("figure", "figures"): change["values"] for change in entry["changes"]}
        for title, entry in zip(titles, entries, strict=True)
    ]


LOSS, SPECTRUM = "Held-out loss by number of components", "Directions, by size"
COORDINATES = "Components of the rows"
AGAINST, DEPENDS = "Predicted vs. observed", "What each component depends on"


def narrow_net(rank=2, seed=0):
    """A network of 5 layers, the middle ones of which carry ``rank`` numbers."""
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(12, 12), nn.ReLU())), nn.Linear(12, 4))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator))
        for layer in (net[2], net[4], net[6]):
            mix = torch.zeros(12, 12)
            mix[:rank, :rank] = torch.eye(rank)
            layer.weight.copy_(mix)
            layer.bias.fill_(0.0)
    return net


@pytest.fixture(scope="module")
def compressed():
    return compress(narrow_net(), torch.randn(200, 12, generator=torch.Generator().manual_seed(1)), tol=0.05)


@pytest.fixture(scope="module")
def symmetric():
    norm = nn.Identity()
    norm.forward = lambda x: x[:, :2].square().sum(1, keepdim=True)
    return symmetries(norm, torch.randn(60, 3, generator=torch.Generator().manual_seed(0)))


# ---- a fit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("summary", "said", "how"),
    [
        (
            make_summary(),
            "2 variables computed from the 5 inputs suffice to predict the 3 outputs",
            "interval 2 to 2: 5 of 5 networks",
        ),
        (
            make_summary(1, d_out=1),
            "y depends on 1 linear combination of the inputs (out of 5 inputs)",
            "interval 1 to 1",
        ),
        (
            make_summary(1, d_out=1, n_input_directions=2, n_input_directions_interval=(2, 3)),
            "y depends on 2 linear combinations of the inputs (out of 5 inputs)",
            "interval 2 to 3: 5 of 5 networks have 1",
        ),
        (
            make_summary(
                1,
                classes=("a", "b"),
                input_directions_undetermined=True,
                input_directions_reason="of noise",
                n_input_directions_interval=(1, 2),
            ),
            "It is undetermined on how many linear combinations of the 5 inputs y depends: 1 to 2",
            "undetermined because of noise (interval 1 to 2); 1 used here",
        ),
        (make_summary(0, d_out=1), "No linear combination of the inputs was found", "no better"),
        (
            make_summary(classes=("a", "b", "c")),
            "2 variables computed from the 5 inputs suffice to predict the 3 classes",
            "interval 2 to 2",
        ),
        (
            dataclasses.replace(make_summary(), state_dimension=1, state_dimension_interval=(1, 1)),
            "suffice to predict the 3 outputs; the rows fill a set of dimension 1 in them",
            "interval 2 to 2",
        ),
        (
            make_summary(estimator="BottleneckAutoencoder"),
            "2 variables suffice to describe the 5 inputs",
            "interval 2 to 2",
        ),
        (make_summary(0), "Nothing in the 5 inputs was found to predict the 3 outputs", "no better than the mean"),
        (
            make_summary(undetermined=True, interval=(1, 3), reason="undetermined: they differ"),
            "It is undetermined how many variables computed from the 5 inputs predict the 3 outputs: 1 to 3",
            "undetermined because they differ (interval 1 to 3); 2 used here",
        ),
        (
            make_summary(0, undetermined=True, reason="undetermined: they differ"),
            "It is undetermined how many variables computed from the 5 inputs predict the 3 outputs",
            "undetermined because they differ",
        ),
    ],
)
def test_the_headline_says_how_many_numbers_and_how_sure(tmp_path, summary, said, how):
    page, _ = read(summary, tmp_path)
    assert f"{said} " in page.text
    assert how in page.text


@pytest.mark.parametrize(
    ("summary", "mark"),
    [
        (make_summary(), "good"),
        (make_summary(interval=(1, 3)), "neutral"),
        (make_summary(1, interval=(0, 1)), "neutral"),
        (make_summary(0), "warn"),
        (make_summary(interval=(1, 3), undetermined=True, reason="undetermined: they differ"), "warn"),
    ],
)
def test_only_a_count_without_rivals_has_a_tick(tmp_path, summary, mark):
    page, _ = read(summary, tmp_path)
    assert re.findall(r'<span class="mark (\w+) wraps">', page.source) == [mark]


def test_a_score_of_rounding_error_is_zero(tmp_path):
    summary = make_summary(0, d_out=2)
    mean = summary.observed.mean(axis=0)
    summary = dataclasses.replace(summary, score=4.441e-17, predicted=mean + 1e-13 * (summary.observed - mean))
    page, shown = read(summary, tmp_path)
    assert [note.split(":")[-1] for note in shown[AGAINST]["note"]] == [" 0."] * 2
    assert "e-17" not in page.text
    facts = dict(re.findall(r"<tr><td[^>]*>([^<]*)</td><td[^>]*>([^<]*)</td></tr>", page.source))
    assert facts["R² on these rows"] == "0"
    page, _ = read(make_summary(1, d_out=1), tmp_path)
    assert float(re.search(r"R² of y0: (.*?)\.<", page.source)[1]) > 0


def test_a_fit_shows_the_numbers_of_its_summary(tmp_path):
    summary = make_summary(3, d_in=4, d_out=6)
    page, shown = read(summary, tmp_path)
    assert shown["kind"] == "found"
    curve, used = shown[LOSS]["figure"]["data"]
    assert used["x"] == [3]
    assert [shown[LOSS]["figure"]["layout"]["shapes"][0][end] for end in ("x0", "x1")] == [2.5, 3.5]
    np.testing.assert_allclose(curve["y"], summary.held_out, rtol=1e-4)
    np.testing.assert_allclose(curve["error_y"]["array"], summary.held_out_error, rtol=1e-4)
    for target in ("x", "y"):
        drawn = [trace for (trace,) in shown[COORDINATES][target]]
        np.testing.assert_allclose(drawn, summary.coordinates.T, rtol=1e-3)
    np.testing.assert_allclose(shown[DEPENDS]["figure"]["data"][0]["z"], summary.sensitivity, rtol=1e-2)
    np.testing.assert_allclose(shown[DEPENDS]["narrow"]["data"][0]["z"], summary.sensitivity.T, rtol=1e-2)
    at_bottleneck, of_inputs = shown[SPECTRUM]["figure"], shown[SPECTRUM]["figures"][1]
    np.testing.assert_allclose(at_bottleneck["data"][0]["y"], summary.spectrum, rtol=1e-4)
    gaps = [figure["layout"]["annotations"][0]["text"] for figure in (at_bottleneck, of_inputs)]
    assert gaps == [f"gap {1.0 / 0.05:.4g}", f"gap {summary.input_spectrum[2] / summary.input_spectrum[3]:.4g}"]
    for i, (color,) in enumerate(shown[COORDINATES]["marker.color"]):
        np.testing.assert_allclose(color, summary.observed[:, i], rtol=1e-3)
        _, dots = shown[AGAINST]["figures"][i]["data"]
        np.testing.assert_allclose(dots["x"], summary.observed[:, i], rtol=1e-3)
        np.testing.assert_allclose(dots["y"], summary.predicted[:, i], rtol=1e-3)
        said = shown[AGAINST]["note"][i]
        assert said.startswith(f"Fitted rows; dotted: equality. R² of y{i}: ")
        r2 = float(said.rpartition(": ")[2].rstrip("."))
        assert r2 == pytest.approx(r2_score(summary.observed[:, i], summary.predicted[:, i]), abs=1e-3)
    for words in ("all folds but one", "0 1 2 3 3 3", "0 1 2 4 4 4", "1000 3", "Components, most influential first"):
        assert words in page.text
    assert not {title for title in shown if "class" in title}


def test_classes_give_colors_and_a_confusion_matrix(tmp_path):
    for labels in (("b", "a", "c"), (0.0, 1.0, 2.0), (False, True)):
        summary = make_summary(1, classes=labels)
        _, shown = read(summary, tmp_path)
        traces = shown["Component by class"]["figure"]["data"]
        assert [trace["hovertemplate"].split("<")[0] for trace in traces] == list(map(str, labels))
        assert len({trace["marker"]["color"] for trace in traces}) == len(labels)
        for trace, label in zip(traces, labels, strict=True):
            own = summary.coordinates[[str(value) == str(label) for value in summary.observed], 0]
            np.testing.assert_allclose(trace["x"], own, rtol=1e-3)
        names = [[str(label) for label in column] for column in (summary.observed, summary.predicted)]
        expected = confusion_matrix(*names, labels=list(map(str, labels)))
        np.testing.assert_array_equal(shown[AGAINST]["figure"]["data"][0]["text"], expected)


def test_one_output_shows_the_combinations_of_inputs_first(tmp_path):
    summary = make_summary(1, d_in=30, d_out=1, n_input_directions=25)
    page, shown = read(summary, tmp_path)
    curve, used = shown["Held-out loss by number of combinations of the inputs"]["figure"]["data"]
    np.testing.assert_allclose(curve["y"], summary.input_held_out[:28], rtol=1e-4)
    assert used["x"] == [25]
    options = '<option value="0" selected>of combinations of inputs</option><option value="1">inside the model</option>'
    assert options in page.source


def test_nothing_found_has_neither_coordinates_nor_sensitivities(tmp_path):
    page, shown = read(make_summary(0), tmp_path)
    assert set(shown) == {"kind", LOSS, AGAINST}
    assert "Components, most influential first" not in page.text


def test_what_is_too_much_is_left_out_and_said(tmp_path):
    summary = make_summary(25, d_in=100, d_out=80, rows=50, n_input_directions=30)
    quiet = summary.observed * np.r_[np.zeros(30), np.ones(50)]
    page, shown = read(make_summary(25, d_in=100, d_out=80, rows=50, observed=quiet, n_input_directions=30), tmp_path)
    titles = [text for (text,) in shown[COORDINATES]["marker.colorbar.title.text"]]
    assert titles == [f"y{i}" for i in range(30, 80)]
    assert len(shown[COORDINATES]["x"]) == charts.MAX_COORDINATES
    kept = {int(name[1:]) for name in shown[DEPENDS]["figure"]["layout"]["xaxis"]["ticktext"]}
    most = summary.sensitivity[: charts.MAX_COORDINATES].max(axis=0)
    assert len(kept) == charts.MAX_INPUTS
    assert min(most[list(kept)]) >= max(most[list(set(range(100)) - kept)])
    (left_out,) = re.findall("Left out of the plots: (.*?)\\.<", page.source)
    assert len(left_out.split(";")) == 3
    assert len(page.source) < 6_000_000


def test_names_are_escaped(tmp_path):
    summary = make_summary(inputs=(EVIL, "b", "c", "d", "e"), output_names=(EVIL, "<b>", "y2"), notes=(EVIL,))
    page, shown = read({EVIL: summary}, tmp_path)
    assert [tag for tag, _ in page.tags].count("script") == 3
    assert not any(tag == "img" and "onerror" in attributes for tag, attributes in page.tags)
    cut = escape(EVIL[:23] + "…", quote=False)
    assert shown[DEPENDS]["figure"]["layout"]["xaxis"]["ticktext"][0] == cut
    assert shown[COORDINATES]["marker.colorbar.title.text"][0] == [cut]
    assert page.source.count("<script>alert") == 0


def test_fitted_estimators_are_taken_and_unfitted_ones_are_refused(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 4))
    fitted = BottleneckRegressor(1, ridges=[0.01], n_networks=1, steps=10).fit(x, x[:, :1] @ np.array([[1.0, -2.0]]))
    page, shown = read(fitted, tmp_path)
    assert "What BottleneckRegressor found" in page.text
    dots = shown["Component against output"]["figure"]["data"][0]
    np.testing.assert_allclose(dots["x"], fitted.transform(x)[:, 0], rtol=1e-3, atol=1e-6)
    for source in ({"first": fitted}, [fitted.summary()], Section("s", found=fitted), [Section("s", found=fitted)]):
        assert read(source, tmp_path)[1] == shown
    for kind in (BottleneckRegressor, BottleneckClassifier, BottleneckAutoencoder):
        with pytest.raises(NotFittedError, match=f"source: got a {kind.__name__} that is not fitted"):
            report(kind(), tmp_path / "none.html")
    with pytest.raises(TypeError, match="found: got"):
        Section("s", found=3)
    assert not (tmp_path / "none.html").exists()


# ---- a compression and symmetries -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("title", "heads"), [(None, 1), ("Another", 2)])
def test_a_title_that_is_the_only_section_stands_once(tmp_path, title, heads):
    page = Page(report({"Ranks <1>": make_summary()}, tmp_path / "found.html", title=title))
    assert len(re.findall(r"<h[12]\b", page.source)) == heads
    assert page.source.count(">Ranks &lt;1&gt;</h") == 1


def test_the_headline_of_a_compression_has_the_accuracy(tmp_path, compressed):
    measured = dataclasses.replace(compressed.certificate, held_out_accuracy=Accuracy(0.9125, 0.905, 400))
    page, shown = read(dataclasses.replace(compressed, certificate=measured, steps=compressed.steps[:1]), tmp_path)
    assert "times fewer; held-out accuracy 91.25 % before, 90.50 % after" in page.text
    assert "Change after every step" not in shown  # one point


def test_a_compression_shows_steps_certificate_and_what_was_left(tmp_path, compressed):
    page, shown = read(compressed, tmp_path)
    certificate = compressed.certificate
    assert compressed.changed
    assert shown["kind"] == "compressed"
    (bars,) = shown["Remaining cost (%)"]["figure"]["data"]
    assert dict(zip(bars["y"], bars["x"], strict=True))["parameters"] == pytest.approx(
        100 * certificate.parameters / certificate.parameters_before, rel=1e-3
    )
    assert shown["Change after every step"]["figure"]["data"][0]["text"] == [step.kind for step in compressed.steps]
    assert f"{certificate.parameters_before:,} parameters became {certificate.parameters:,}" in page.text
    for words in ("within the tolerance of 5 %", "multiply-adds per sample", "latency in ms", "Linear(in_features=12"):
        assert words in page.text
    for step in compressed.steps:
        assert step.what in page.text


def shares(change):
    """What the page says of a change, in percent."""
    return [100 * part for part in (change.relative, change.centered, change.worst, change.decisions)]


def test_a_compression_shows_accuracy_and_the_rank_below(tmp_path, compressed):
    bare = dataclasses.replace(compressed.certificate, jacobian_rank=None)
    page, _ = read(dataclasses.replace(compressed, certificate=bare), tmp_path)
    assert "accuracy" not in page.text
    assert "Jacobian" not in page.text
    certificate = dataclasses.replace(
        compressed.certificate,
        accuracy=Accuracy(0.875, 0.75, 200),
        held_out_accuracy=Accuracy(0.625, 0.5, 40),
        jacobian_rank=2,
        jacobian_rank_before=7,
    )
    page, _ = read(dataclasses.replace(compressed, certificate=certificate), tmp_path)
    assert (
        "Its Jacobian has rank 2 on the samples (before: 7), below which no bottleneck rank can be (T5)." in page.text
    )
    on_x, held_out = (
        f"{where} {' '.join(cell(value) for value in (change.samples, *shares(change)))} {accuracy}"
        for where, change, accuracy in (
            ("all of x", certificate.on_x, "87.5 75"),
            ("held out", certificate.held_out, "62.5 50"),
        )
    )
    assert f"accuracy before, % after, % {on_x} {held_out} " in page.text


def test_a_network_returned_as_it_is_says_why(tmp_path):
    found = compress(nn.Sequential(nn.Linear(3, 2)), torch.randn(60, 3), tol=1e-6)
    page, shown = read(found, tmp_path)
    assert not found.changed
    assert "Returned unchanged" in page.text
    assert found.reason in page.text
    assert set(shown) == {"kind", "Remaining cost (%)"}


def test_symmetries_show_generators_values_and_finite_ones(tmp_path, symmetric):
    page, shown = read(symmetric, tmp_path)
    assert shown["kind"] == "symmetries"
    figures = [entry["figure"] for entry in titled(page)]
    for figure, part in zip(figures, (symmetric.translations, symmetric.fields), strict=True):
        (dots,) = figure["data"]
        np.testing.assert_allclose(dots["y"], np.maximum(part.values.numpy(), 1e-16), rtol=1e-4)
        colors = dots["marker"]["color"]
        assert len(set(colors[: part.count])) == 1
        assert not set(colors[: part.count]) & set(colors[part.count :])
        assert figure["layout"]["shapes"][0]["y0"] == 1e-6
    assert f"{symmetric.dimension} infinitesimal symmetries" in page.text
    for piece in symmetric.pieces:
        assert piece.text in page.text
    for test in symmetric.held:
        assert test.text in page.text
    exact = sum(test.verdict == "exact" for test in symmetric.finite)
    assert page.source.count('<span class="mark good">exact</span>') == exact > 0


def test_symmetries_of_a_learned_model_are_told_from_those_of_the_data(tmp_path):
    x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    net = nn.Linear(3, 1)
    y = net(x).detach() + 0.05 * torch.randn(90, 1, generator=torch.Generator().manual_seed(1))
    found = symmetries(net, x[:60], held_out=(x[60:], y[60:]))
    text = read(found, tmp_path)[0].text
    assert "2 infinitesimal symmetries (approximate)" in text
    assert "within the held-out error" in text
    assert f"The error of f is {found.rtol:.2g} of the spread of the targets (held-out error)." in text
    assert "An infinitesimal symmetry is a gradual change of x" in text
    alone = read(symmetries(net, x), tmp_path)[0].text  # nothing was learned, as far as known
    assert "2 infinitesimal symmetries (exact)" in alone
    assert "in the data" not in alone.replace("In the data, a symmetry", "")


def test_scalings_have_a_chart_and_what_lies_beyond_the_data_is_listed(tmp_path, symmetric):
    piece = symmetric.pieces[0]
    changed = dataclasses.replace(symmetric, scalings=symmetric.fields, beyond=(piece,))
    page, shown = read(changed, tmp_path)
    assert {"Scalings of positive columns"} == set(shown) - set(read(symmetric, tmp_path)[1])
    assert "Only beyond the data, not counted" in page.text


def test_symmetries_that_resamples_doubt_have_no_tick(tmp_path, symmetric):
    marks = [
        re.findall(r'<span class="mark (\w+) wraps">', read(found, tmp_path)[0].source)
        for found in (symmetric, dataclasses.replace(symmetric, interval=(1, 3)))
    ]
    assert marks == [["good"], ["neutral"]]


def test_the_threshold_is_the_one_that_decided(symmetric):
    gap = dataclasses.replace(symmetric.fields.gap, exact=False, candidate=1, ratio=7.0)
    fields = dataclasses.replace(symmetric.fields, gap=gap, status="undetermined", values=torch.tensor([0.1, 0.7]))
    learned = dataclasses.replace(symmetric, fields=fields, translations=fields)
    entries = [chart.figure for chart in charts.view(learned).groups[0].charts]
    assert [figure.layout.shapes[0].y0 for figure in entries] == [0.05, 0.2]
    assert [figure.layout.annotations[1].text for figure in entries] == ["gap 7"] * 2
    assert [set(figure.data[0].marker.color) for figure in entries] == [{MUTED}] * 2  # none counts
    known = charts.view(dataclasses.replace(learned, rtol=0.01)).groups[0].charts
    assert [chart.figure.layout.shapes[0].y0 for chart in known] == [0.2, 0.2]


# ---- the still picture ----------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present")
def test_the_pages_in_a_browser(tmp_path, compressed, symmetric):
    from .browser import chromium, show
    from .test_browser import PLOTS, use, wait_for

    evil = ("<script>alert(1)</script>", "<b>bold</b>", "c", "d", "e")
    sources = {
        "fit": make_summary(3, inputs=evil, output_names=evil[:3]),
        "classes": make_summary(2, classes=evil[:3]),
        "line": make_summary(1, classes=("a", "b")),
        "one": make_summary(1, d_out=1),
        "none": make_summary(0),
        "wide": make_summary(2, d_in=50, estimator="BottleneckAutoencoder", d_out=50),
        "smaller": compressed,
        "group": symmetric,
    }
    path = report(sources, tmp_path / "found.html")
    with chromium() as driver:
        show(driver, 1280, "light")
        driver.get(path.as_uri())
        counts = [5, 5, 5, 5, 2, 5, 3, 2]
        wait_for(driver, f"return document.querySelectorAll('{PLOTS} .main-svg .xtitle').length >= {sum(counts)}")
        for i, count in enumerate(counts, 1):
            boxes = driver.execute_script(f"return document.querySelectorAll('#section-{i}-found .plot').length")
            assert boxes == count, (i, boxes)
        assert driver.execute_script("return document.querySelectorAll('.plot b, .plot script').length") == 0
        ticks = "return [...document.querySelectorAll('#section-1-found .xtick text')].map((text) => text.textContent)"
        assert "<b>bold</b>" in driver.execute_script(ticks)
        colors = "return document.querySelectorAll('#section-1-found .plot')[2].data[0].marker.color"
        predicted = "return document.querySelectorAll('#section-1-found .plot')[3].data[1].x"
        assert driver.execute_script(colors) == driver.execute_script(predicted)
        first = driver.execute_script(colors)
        use(driver, "#section-1-found .card:nth-child(3) select[data-state=output]", 1)
        assert driver.execute_script(colors) == driver.execute_script(predicted) != first
        across = "return document.querySelectorAll('#section-1-found .plot')[2].data[0].x"
        before = driver.execute_script(across)
        use(driver, "#section-1-found .card:nth-child(3) select[data-state=across]", 2)
        assert driver.execute_script(across) != before
        heat = "return document.querySelectorAll('#section-6-found .plot')[4].data[0].z.length"
        assert driver.execute_script(heat) == 2
        for width, scheme in ((400, "light"), (400, "dark"), (1280, "dark")):
            show(driver, width, scheme)
            wait_for(driver, f"return innerWidth === {width} && document.documentElement.scrollWidth <= {width}")
            wait_for(driver, f"{heat} === {50 if width < 900 else 2}")
            inside = "every((s) => s.getBoundingClientRect().right <= s.closest('.card').getBoundingClientRect().right)"
            wait_for(driver, f"return [...document.querySelectorAll('{PLOTS} .main-svg')].{inside}")
        assert driver.get_log("browser") == []


def test_the_terms_on_the_page_are_explained_there(tmp_path):
    page, _ = read(make_summary(), tmp_path)
    for term in ("component", "held-out loss", "standard error", "ridge", "fold", "influence", "sensitivity", "gap"):
        assert f" {term} {TERMS[term]} " in page.text
    assert TERMS["undetermined"] not in page.text
    assert TERMS["undetermined"] in read(make_summary(undetermined=True), tmp_path)[0].text
    assert set(TERMS) == set(explained(" ".join(TERMS)))


def test_names_of_inputs_are_no_terms(tmp_path):
    names = ("depth", "country", "seed", "ridges", "gap")
    plain = make_summary(1, d_out=1, stability=(), notes=())
    named = dataclasses.replace(plain, inputs=names, notes=("constant inputs left out: ridge, interval, fold",))
    assert str(named).split("\nterms\n")[1] == str(plain).split("\nterms\n")[1]
    assert "country" in str(named)
    assert "  gap: " not in str(named)
    meanings = [
        {meaning for meaning in TERMS.values() if f" {meaning} " in read(summary, tmp_path)[0].text}
        for summary in (plain, named)
    ]
    assert meanings[0] == meanings[1] >= {TERMS["combination"], TERMS["ridge"]}
    assert not meanings[0] & {TERMS["depth"], TERMS["seed"], TERMS["count"], TERMS["gap"]}
