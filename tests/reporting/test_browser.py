"""The page in a real browser: drawn, moved, in both color schemes, at two widths, offline."""

import time
from types import SimpleNamespace

import plotly.graph_objects
import pytest
import torch

import bnrank
from bnrank.reporting import Section, plots, report
from bnrank.reporting.blocks import Details
from bnrank.reporting.page import Part, compose, contents, write

from .browser import chromium, show, why_absent
from .conftest import make_history, make_profile

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present")]

PLOTS = ".view .card .plot"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    figure = plotly.graph_objects.Figure(plotly.graph_objects.Scatter(x=[1, 2], y=[2, 1], name="a"))
    histories = {"depth 6": make_history(), "depth 12": make_history(depth=12, steps=30)}
    profiles = {"depth 13": make_profile(), "depth 8": make_profile(depth=8)}
    still = plots.norm_versus_depth([4, 6], [8.0, 12.0], [2, 2], [0.0, 0.0])
    claim = SimpleNamespace(
        name="a claim in rather many words, so that it has to wrap", passed=True, measured=1, expected="1"
    )
    sections = [
        Section(
            "A", "text", claims=[claim], history=histories, profile=profiles, figures={"own": figure, "F4a": still}
        ),
        Section("Curves only", history=make_history().drop_vars("weight_singular_values")),
    ]
    return report(sections, tmp_path_factory.mktemp("page") / "page.html", title="Averyveryverylongwordinatitle " * 3)


@pytest.fixture(scope="module")
def browser():
    with chromium() as driver:
        yield driver


@pytest.fixture
def driver(browser, page):
    show(browser, 1280, "light")
    browser.get_log("browser")
    browser.get(page.as_uri())
    wait_for(browser, f"return document.querySelectorAll('{PLOTS} .main-svg').length > 0")
    yield browser
    assert browser.get_log("browser") == []


def wait_for(driver, script, seconds=20.0):
    end = time.monotonic() + seconds
    while not driver.execute_script(script):
        assert time.monotonic() < end, f"never true: {script}"
        time.sleep(0.05)


def use(driver, selector, value, event="change"):
    driver.execute_script(
        "const e = document.querySelector(arguments[0]); e.value = arguments[1];"
        "e.dispatchEvent(new Event(arguments[2], {bubbles: true}))",
        selector,
        value,
        event,
    )


def spectra(driver):
    """The data of the plot of the weights' spectra at a step."""
    return driver.execute_script(
        "return document.querySelectorAll('#section-1-history .group:not([hidden]) .plot')[1].data.map((t) => t.y)"
    )


def test_every_plot_is_drawn(driver):
    drawn = driver.execute_script(
        "return [...document.querySelectorAll(arguments[0])].filter((p) => p.offsetParent).map((p) => "
        "p.querySelectorAll('.main-svg path.js-line, .main-svg .hm image').length)",
        PLOTS,
    )
    assert len(drawn) == 1 + 4 + 6 + 1  # a figure, a history, a profile, a history of which only curves are shown
    assert all(drawn)


def test_plots_stay_inside_their_cards_without_a_resize(driver, tmp_path):
    driver.get(report(make_profile(), tmp_path / "p.html").as_uri())
    inside = (
        f"const drawn = [...document.querySelectorAll('{PLOTS} .main-svg')]; return drawn.length > 0 && drawn.every("
        "(svg) => svg.getBoundingClientRect().right <= svg.closest('.card').getBoundingClientRect().right)"
    )
    wait_for(driver, inside, seconds=5.0)


def test_plots_that_are_folded_away_are_drawn_inside_their_box_once_it_is_opened(driver, tmp_path):
    body = contents(Section("S", history=make_history(), profile=make_profile()), "s", 10)
    folded = Part("part", "part", [Details("more", body)])
    driver.get(write(tmp_path / "p.html", compose("t", [], [folded])).as_uri())
    assert driver.execute_script(f"return document.querySelectorAll('{PLOTS} .main-svg').length") == 0
    driver.execute_script("document.querySelector('details').open = true")
    wait_for(driver, f"return document.querySelectorAll('{PLOTS} .main-svg').length > 0")
    wait_for(
        driver,
        f"return [...document.querySelectorAll('{PLOTS} .main-svg')].every((svg) => svg.getBoundingClientRect().right"
        " <= svg.closest('.card').getBoundingClientRect().right)",
    )


def test_the_slider_moves_the_spectra(driver):
    late = spectra(driver)
    use(driver, "#section-1-history input[type=range]", 0, "input")
    early = spectra(driver)
    assert early != late
    assert max(early[-1]) < 0.1 < 1.0 < max(late[-1])
    assert driver.execute_script("return document.querySelector('#section-1-history output').textContent") == "step 0"
    marker = "return document.querySelectorAll('#section-1-history .plot')[arguments[0]].layout.shapes[0].x0"
    assert [driver.execute_script(marker, i) for i in (0, 2, 3)] == [0, 0, 0]


def test_play_moves_the_slider(driver):
    position = "return +document.querySelector('#section-1-history input[type=range]').value"
    press = "document.querySelector('#section-1-history .timeline button').click()"
    last = driver.execute_script(position)
    driver.execute_script(press)
    wait_for(driver, f"{position} > 3")
    driver.execute_script(press)
    assert 3 < driver.execute_script(position) < last


def test_the_member_and_the_history_can_be_chosen(driver):
    first = spectra(driver)
    use(driver, "#section-1-history .group select[data-state=member]", 2)
    assert spectra(driver) != first
    note = driver.execute_script("return document.querySelector('#section-1-history [role=status]').textContent")
    assert note.startswith("member 2 stopped (diverged)")
    driver.execute_script(
        "const button = document.querySelectorAll('#section-1-history .key button')[3]; button.focus(); button.click()"
    )
    assert driver.execute_script("return document.querySelector('[data-state=member]').value") == "3"
    assert driver.execute_script("return document.activeElement.textContent").startswith("member 3")
    use(driver, "#section-1-history select[data-group]", 1)
    assert {len(line) for line in spectra(driver)} == {12}


def test_zero_does_not_count_at_the_threshold_zero_and_hover_keeps_values(driver, tmp_path):
    history = make_history()
    history["weight_singular_values"][:, :, :, 2:] *= 0.0
    driver.get(report(history, tmp_path / "p.html").as_uri())
    wait_for(driver, f"return document.querySelectorAll('{PLOTS} .main-svg').length > 0")
    use(driver, "#section-1-history input[type=number]", "0", "input")
    ranks = "return document.querySelectorAll('#section-1-history .plot')[2].data[0].z.map((row) => row.at(-1))"
    assert driver.execute_script(ranks) == [2] * 6
    use(driver, "#section-1-history select[data-state=scale]", 1)
    first = "return document.querySelectorAll('#section-1-history .plot')[1].data[5].customdata[2]"
    assert driver.execute_script(first) == 0


def test_log_scale_and_threshold(driver):
    use(driver, "#section-1-history select[data-state=scale]", 1)
    kind = "return document.querySelectorAll('#section-1-history .plot')[1].layout.yaxis.type"
    assert driver.execute_script(kind) == "log"
    ranks = "return document.querySelectorAll('#section-1-history .plot')[2].data[0].z.map((row) => row.at(-1))"
    before = driver.execute_script(ranks)
    use(driver, "#section-1-history input[type=number]", "1.0", "input")
    assert driver.execute_script(ranks) == [2] * 6 != before


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_no_sideways_scroll_in_either_scheme(driver, width, scheme):
    show(driver, width, scheme)
    wait_for(driver, f"return innerWidth === {width} && document.documentElement.scrollWidth <= {width}")
    wait_for(
        driver,
        f"return [...document.querySelectorAll('{PLOTS} .main-svg')].every((s) => "
        "s.getBoundingClientRect().right <= innerWidth)",
    )
    inside = "return [...document.querySelectorAll('.scroll, .picture')].filter((e) => e.offsetParent).every((e) => "
    assert width == 1280 or driver.execute_script(f"{inside}e.scrollWidth <= e.clientWidth)")
    ink, background, title = driver.execute_script(
        "const plot = document.querySelector('.plot .xtitle');"
        "const style = getComputedStyle(document.body);"
        "return [style.color, style.backgroundColor, getComputedStyle(plot).fill]"
    )
    light = {color: sum(map(int, color[4:-1].split(","))) > 384 for color in (ink, background, title)}
    assert light == {ink: scheme == "dark", background: scheme == "light", title: scheme == "dark"}


def test_cells_say_their_heading_where_a_row_is_a_list(driver, tmp_path):
    measured = bnrank.profile({"a": torch.eye(3), "b": torch.eye(2)})
    driver.get(report(measured, tmp_path / "p.html").as_uri())
    labels = (
        "return [...document.querySelectorAll('table')].map((t) => [[...t.querySelectorAll('th')].map((h) => "
        "h.textContent), [...t.querySelectorAll('tbody tr:first-child td')].map((d) => "
        "getComputedStyle(d, '::before').content)])"
    )
    show(driver, 1280, "light")
    assert all(said == ["none"] * len(said) for _, said in driver.execute_script(labels))
    show(driver, 400, "light")
    wait_for(driver, "return innerWidth === 400")
    found = driver.execute_script(labels)
    assert max(len(headings) for headings, _ in found) > 5
    for headings, said in found:
        assert [text.strip('"') for text in said[1:]] == headings[1:]


def test_claims_are_shown_whole_and_every_table_is_in_print(driver, tmp_path):
    words = "rather many words, so that each takes several lines of a table that is not as wide as the window is"
    claims = [SimpleNamespace(name=f"{i}: {words}", passed=True, measured=1, expected=words) for i in range(40)]
    rows = [{"row": i} | {f"column {j}": "several words" for j in range(8)} for i in range(60)]
    driver.get(report(Section("S", claims=claims, rows=rows), tmp_path / "p.html").as_uri())
    cut = "return [...document.querySelectorAll('.scroll')].map((box) => box.scrollHeight > box.clientHeight + 1)"
    assert driver.execute_script(cut) == [False, True]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert driver.execute_script(cut) == [False, False]
    style = "return [...document.querySelectorAll('.scroll')].map((box) => getComputedStyle(box).overflow)"
    assert driver.execute_script(style) == ["visible", "visible"]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
