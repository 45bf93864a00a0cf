"""`bnrank reproduce`: resumed, stored whole, never mixed, on one page. Its figures are planted, of milliseconds."""

import errno
import importlib.util
import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import plotly.graph_objects
import pytest
import torch
import xarray as xr
from matplotlib.figure import Figure as Canvas
from rich.console import Console

import bnrank
from bnrank import cli, figures
from bnrank.figures import gallery, requirements, store
from bnrank.figures.base import Claim, Figure, Outcome
from bnrank.reporting import Section
from bnrank.tasks import images
from bnrank.training.progress import interruptions

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

    def made(folder, progress, **settings):
        calls.append(settings)
        return make(folder, progress, **settings) if make else Outcome(name, (PASSED,))

    scales = {"quick": {"width": 3}, "paper": {"width": 100}}
    figure = Figure(
        name.upper(), f"{name}-name", f"{name} in words", "A paper", f"what {name} shows", scales, made, **options
    )
    return figure, calls


def raises(*_, **__):
    raise RuntimeError("no such luck")


@pytest.fixture(autouse=True)
def _small_pictures(monkeypatch):
    monkeypatch.setattr(store, "SVG_LIMIT", 50_000)


@pytest.fixture
def plant(monkeypatch):
    """Put planted figures in the place of all that there are."""
    return lambda *made: monkeypatch.setattr(figures, "FIGURES", tuple(figure for figure, _ in made))


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bnrank", "reproduce", *arguments])
        monkeypatch.setattr(cli, "console", Console(width=120))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return exit_.value.code or 0, *capsys.readouterr()

    return run


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
    return next(part for part in page.split("<section ") if part.startswith(f"id={name.upper()} "))


# ---- stored whole -----------------------------------------------------------------------------------------------


def test_an_outcome_is_opened_as_it_was(tmp_path):
    made = planted("a", lambda *_, **__: rich_outcome())[0].run("quick", tmp_path, progress=False)
    assert made.error == ""
    again = Outcome.open(tmp_path / "a-name")
    assert (again.figure, again.version, again.code) == ("A a-name", bnrank.__version__, store.code_digest())
    assert again.settings == {"scale": "quick", "width": 3, "data": "planted"}
    assert again.seconds == pytest.approx(made.seconds, abs=1e-3)
    assert [c.passed for c in again.claims] == [True, False, True]
    assert (again.claims[0], again.claims[2].measured) == (PASSED, "1, 2")
    assert np.isnan(again.claims[1].measured)
    assert again.captions == {"large": "L"}
    rows, data, shown = again.sections
    (row,) = rows.rows
    assert (rows.text, row["n"], row["y"], row["z"], row["t"]) == ("First.\n\nSecond.", 3, np.inf, None, [1, 2.5])
    assert np.isnan(row["x"])
    assert data.claims == (FAILED,)
    xr.testing.assert_identical(data.histories["planted"], history())
    assert list(data.profiles) == ["deep", "flat"]
    xr.testing.assert_equal(data.profiles["flat"], profile())
    assert data.profiles["deep"].attrs["nested"] == '{"a": [1, "b"]}'
    assert shown.figures["own"].read_bytes().startswith(b"\x89PNG")
    assert shown.figures["moving"]["data"][0]["type"] == "scatter"
    assert shown.all_settings == {"settings": {"a.b": 1}}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in again.pictures.values())
    assert (tmp_path / "a-name" / "a-b.svg").exists()
    assert not (tmp_path / "a-name" / "large.svg").exists()
    json.loads((tmp_path / "a-name" / "claims.json").read_text(), parse_constant=pytest.fail)


def test_an_opened_outcome_can_be_saved_again_elsewhere_and_over_itself(tmp_path):
    rich_outcome().save(tmp_path / "one")
    again = Outcome.open(tmp_path / "one")
    again.save(tmp_path / "two")
    again.save(tmp_path / "one")
    for folder in ("one", "two"):
        found = Outcome.open(tmp_path / folder)
        assert found.pictures["a-b"].read_bytes() == again.pictures["a-b"].read_bytes()
        assert (tmp_path / folder / "a-b.svg").exists()
        xr.testing.assert_identical(found.sections[1].profiles["deep"], again.sections[1].profiles["deep"])
        assert found.sections[2].figures["own"].exists()


def test_verdicts_of_a_section_are_stored_as_rows(tmp_path):
    net = bnrank.MLP([3, 4, 2], seed=0)
    verdicts = bnrank.check(net, torch.randn(9, 3, generator=torch.Generator().manual_seed(0)), only="T4")
    Outcome("F0 x", sections=(Section("V", verdicts=verdicts),)).save(tmp_path)
    assert Outcome.open(tmp_path).sections[0].rows[0]["id"] == "T4"


def test_what_cannot_be_stored_is_an_error_of_the_figure(tmp_path):
    bad = Section("bad", figures={"no figure": 3})
    made = planted("a", lambda *_, **__: Outcome("A", (PASSED,), (bad,)))[0].run("quick", tmp_path, progress=False)
    assert "cannot be stored" in made.error
    assert Outcome.open(tmp_path / "a-name").error == made.error


@pytest.mark.parametrize("spoil", ["claims.json", "sections.json", "a-b.png", "sections/1-profile-1.nc"])
@pytest.mark.parametrize("how", ["missing", "cut"])
def test_what_is_not_whole_is_not_opened_and_made_again(tmp_path, plant, spoil, how):
    data = Section("Data", profile={"p": profile()})
    figure, calls = planted("a", lambda *_, **__: Outcome("A", (PASSED,), (data,), {"a-b": drawn()}))
    plant((figure, calls))
    figures.reproduce("all", tmp_path, progress=False)
    path = tmp_path / "quick" / "a-name" / spoil
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-40])
    own = tmp_path / "quick" / "a-name"
    with pytest.raises(ValueError, match=r"damaged|holds no outcome"):
        Outcome.open(own)
    assert figures.stored(tmp_path) == {}
    (entry,) = figures.listing(tmp_path)
    assert entry.result == ("begun, not finished" if (spoil, how) == ("claims.json", "missing") else "damaged")
    (again,) = figures.reproduce("all", tmp_path, progress=False)
    assert (again.passed, len(calls)) == (True, 2)


def test_a_save_that_is_cut_short_leaves_nothing_that_looks_whole(tmp_path, monkeypatch):
    rich_outcome().save(tmp_path)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        Outcome("F0 other", (FAILED,), (), {"a-b": drawn(), "large": drawn()}).save(tmp_path)
    with pytest.raises(ValueError, match=r"holds no outcome, expected a file claims\.json"):
        Outcome.open(tmp_path)


def test_a_save_removes_the_files_of_the_outcome_before_and_no_others(tmp_path):
    rich_outcome().save(tmp_path)
    mine = [
        tmp_path / name for name in ("mine.png", "mine.svg", "sections/mine.nc", "claims.svg", "sections/notes.svg")
    ]
    for path in mine:
        path.write_text("mine")
    Outcome("F0 x", (PASSED,), (), {"other": drawn()}).save(tmp_path)
    left = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*mine, *(tmp_path / name for name in ("other.png", "other.svg", "sections.json", "claims.json"))}
    (tmp_path / "claims.json").unlink()  # as a save that was cut short leaves it
    Outcome("F0 x", (PASSED,), (), {"other": drawn(3000)}).save(tmp_path)
    assert not (tmp_path / "other.svg").exists()
    assert all(path.read_text() == "mine" for path in mine)


def test_what_the_list_of_files_names_outside_the_folder_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("mine")
    Outcome("F0 x", (PASSED,)).save(tmp_path / "own")
    text = json.loads((tmp_path / "own" / "claims.json").read_text())
    (tmp_path / "own" / "claims.json").write_text(json.dumps(text | {"files": {"../mine": 4, "..": 1}}))
    Outcome("F0 x", (PASSED,)).save(tmp_path / "own")
    assert (tmp_path / "mine").read_text() == "mine"


def test_what_a_live_process_may_be_writing_is_left_alone(tmp_path, plant):
    plant(planted("a"))
    own = tmp_path / "quick" / "a-name"
    old, young = (own / f".claims.json.{name}.partial" for name in ("old", "young"))
    for path in (old, young):
        path.mkdir(parents=True)
    os.utime(old, (time.time() - 3600,) * 2)
    assert figures.reproduce("all", tmp_path, progress=False)[0].passed
    assert (old.exists(), young.exists()) == (False, True)


# ---- resumed ----------------------------------------------------------------------------------------------------


def test_what_is_finished_is_opened_and_what_failed_is_tried_again(tmp_path, plant):
    pictures = {"picture": drawn()}
    made = [planted("a", lambda *_, **__: Outcome("A", (PASSED,), (), pictures))]
    made += [planted("b", lambda *_, **__: Outcome("B", (PASSED, FAILED))), planted("c", raises)]
    plant(*made)
    told = []
    for _ in range(2):
        told.append(([], []))
        outcomes = figures.reproduce(
            ["all"],
            tmp_path,
            progress=False,
            on_start=lambda f: told[-1][0].append(f.id),
            on_end=lambda f, o: told[-1][1].append((f.id, o.passed)),
        )
        assert [o.passed for o in outcomes] == [True, False, False]
        assert "no such luck" in outcomes[2].error
        assert outcomes[0].pictures["picture"].name == "picture.png"
    assert [len(calls) for _, calls in made] == [1, 1, 2]
    assert [start for start, _ in told] == [["A", "B", "C"], ["C"]]
    assert told[0][1] == told[1][1] == [("A", True), ("B", False), ("C", False)]


def test_time_goes_on_after_an_interruption_and_is_kept_with_the_outcome(tmp_path, plant):
    waits = iter([0.3, 0.0])

    def slow(*_, **__):
        wait = next(waits)
        time.sleep(wait)
        if wait:
            raise KeyboardInterrupt
        return Outcome("A", (PASSED,))

    plant(planted("a", slow))
    with pytest.raises(KeyboardInterrupt):
        figures.reproduce("all", tmp_path, progress=False)
    assert "begun, not finished" in row_of(page_of(tmp_path), "a")
    (outcome,) = figures.reproduce("all", tmp_path, progress=False)
    assert outcome.seconds >= 0.3
    (again,) = figures.reproduce("all", tmp_path, progress=False)
    assert again.seconds == outcome.seconds


def test_ctrl_c_ends_the_training_under_way_well_and_then_all(tmp_path, plant):
    before = signal.getsignal(signal.SIGINT)

    ended, begun = [], []

    def make(folder, progress, **settings):
        with interruptions() as interrupted:
            signal.raise_signal(signal.SIGINT)
            ended.append(interrupted.is_set())
        begun.append("the next run")
        return Outcome("B", (PASSED,))

    plant(planted("a"), planted("b", make), planted("c"))
    with pytest.raises(KeyboardInterrupt):
        figures.reproduce("all", tmp_path, progress=False)
    assert (ended, begun) == ([True], [])
    assert signal.getsignal(signal.SIGINT) is before
    assert list(figures.stored(tmp_path)) == ["a-name"]
    assert "not run yet" in row_of(page_of(tmp_path), "c")


def test_ctrl_c_that_is_swallowed_stores_no_outcome(tmp_path, plant):
    def make(folder, progress, **settings):
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.raise_signal(signal.SIGINT)
        return Outcome("B", (PASSED,))

    before = signal.getsignal(signal.SIGINT)
    plant(planted("a"), planted("b", make))
    with pytest.raises(KeyboardInterrupt):
        figures.reproduce("all", tmp_path, progress=False)
    assert signal.getsignal(signal.SIGINT) is before
    assert list(figures.stored(tmp_path)) == ["a-name"]


SCRIPT = """
    import os, signal, sys, time
    from types import SimpleNamespace
    import bnrank
    from bnrank import cli, figures, tasks
    from bnrank.figures import store
    from bnrank.figures.base import Claim, Figure, Outcome

    store.code_digest = lambda: "that of the test"
    PASSED = Claim("one is one", True, 1.0, "1")

    def log(text):
        with open("log", "a") as file:
            file.write(text + "\\n")

    def first(folder, progress):
        log("a made")
        return Outcome("A", (PASSED,))

    def second(folder, progress):
        rows = []
        watch = SimpleNamespace(observe=lambda **row: rows.append(row))
        net, task = bnrank.MLP([20, 3, 20], seed=0), tasks.low_rank_map(n=20)
        run = bnrank.train(net, task, steps=4, record_every=2, out=folder / "one", progress=progress, watch=watch)
        log(f"b {len(rows)} rows")
        if __name__ == "__main__":
            os.kill(os.getpid(), signal.SIGKILL)
        return Outcome("B", (Claim("loss", True, float(run.summary.loss[0]), ""),))

    def third(folder, progress):
        log("c made")
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    names, scales = {"a": first, "b": second, "c": third}, {"quick": {}, "paper": {}}
    FIGURES = tuple(Figure(k.upper(), f"{k}-name", f"{k} in words", "s", "x", scales, f) for k, f in names.items())

    if __name__ == "__main__":
        figures.FIGURES = FIGURES
        sys.argv = ["bnrank", "reproduce", "all", "--out", "out", "--quiet"]
        cli.main()
"""


def test_a_killed_run_leaves_a_page_and_goes_on_from_its_training_runs(tmp_path, command, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    killed = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "log").read_text().splitlines() == ["a made", "b 3 rows"]
    assert "all pass 1 of 1" in row_of(page_of(tmp_path / "out"), "a")
    assert list(figures.stored(tmp_path / "out")) == ["a-name"]

    spec = importlib.util.spec_from_file_location("script", script)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(store, "code_digest", None)
    spec.loader.exec_module(module)
    monkeypatch.setattr(figures, "FIGURES", module.FIGURES)
    code, out, error = command("all", "--out", "out", "--quiet")
    assert code == 130
    assert (tmp_path / "log").read_text().splitlines()[2:] == ["b 0 rows", "c made"]
    assert "A a-name, quick scale, under 1 s, stored before" in out
    assert "Stopped in c-name; the same command goes on" in out
    assert "Traceback" not in error
    page = page_of(tmp_path / "out")
    assert "all pass 1 of 1" in row_of(page, "b")
    assert "begun, not finished" in row_of(page, "c")
    assert list(figures.stored(tmp_path / "out")) == ["a-name", "b-name"]


# ---- versions ---------------------------------------------------------------------------------------------------


def other_version(monkeypatch, what):
    if what == "version":
        monkeypatch.setattr(store, "__version__", "9.9")
    elif what == "source files":
        monkeypatch.setattr(store, "code_digest", lambda: "0123456789abcdef")


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("what", ["version", "source files", "width"])
@pytest.mark.parametrize("finished", [True, False])
def test_results_of_another_version_are_refused_and_left_alone(tmp_path, plant, monkeypatch, what, finished):
    first, second = planted("a", None if finished else raises), planted("b")
    plant(first, second)
    figures.reproduce("a", tmp_path, progress=False)
    if not finished:
        (tmp_path / "quick" / "a-name" / "claims.json").unlink()
    own = tmp_path / "quick" / "a-name"
    before = content(own)
    first[0].settings["quick"]["width"] = 4 if what == "width" else 3
    other_version(monkeypatch, what)
    refused, other = figures.reproduce("all", tmp_path, progress=False)
    assert other.passed
    assert len(first[1]) == 1
    assert content(own) == before
    assert f"{what}: stored" in refused.error
    assert "now" in refused.error
    assert "--fresh" in refused.error
    assert str(own) in refused.error
    page = page_of(tmp_path)
    assert "results of another version" in part_of(page, "a")
    assert ("all pass (other version)" if finished else "not run") in row_of(page, "a")
    figures.reproduce("a", tmp_path, progress=False, fresh=True)
    assert len(first[1]) == 2
    assert (tmp_path / "quick" / "b-name" / "claims.json").exists()
    assert store.differences(own, first[0].stamp("quick")) == []


def test_results_without_a_stamp_are_refused(tmp_path, plant):
    made = planted("a")
    plant(made)
    runs = tmp_path / "quick" / "a-name" / "runs"
    runs.mkdir(parents=True)
    (refused,) = figures.reproduce("all", tmp_path, progress=False)
    assert "does not say which version" in refused.error
    assert not made[1]
    (done,) = figures.reproduce("all", tmp_path, progress=False, fresh=True)
    assert done.passed


def test_run_does_not_make_another_versions_results_look_like_its_own(tmp_path, plant, monkeypatch):
    made = planted("a")
    plant(made)
    figures.reproduce("all", tmp_path, progress=False)
    other_version(monkeypatch, "source files")
    assert made[0].run("quick", tmp_path / "quick", progress=False).passed
    (refused,) = figures.reproduce("all", tmp_path, progress=False)
    assert "source files: stored" in refused.error


@pytest.mark.parametrize("stamp", [None, 3, "version", ["x"]])
@pytest.mark.parametrize("name", ["claims.json", "stamp.json"])
def test_a_stamp_that_is_none_is_that_of_another_version(tmp_path, plant, command, name, stamp):
    made = planted("a")
    plant(made)
    figures.reproduce("all", tmp_path / "reproduction", progress=False)
    path = tmp_path / "reproduction" / "quick" / "a-name" / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {"stamp": stamp}))
    (refused,) = figures.reproduce("all", tmp_path / "reproduction", progress=False)
    assert f"{name} does not say which version" in refused.error
    assert command("--list")[0] == 0
    assert figures.reproduce("all", tmp_path / "reproduction", progress=False, fresh=True)[0].passed
    assert len(made[1]) == 2


def test_an_outcome_that_is_opened_and_saved_again_is_still_the_one_asked_for(tmp_path, plant):
    made = planted("a")
    plant(made)
    figures.reproduce("all", tmp_path, progress=False)
    figures.stored(tmp_path)["a-name"].save(tmp_path / "quick" / "a-name")
    assert figures.reproduce("all", tmp_path, progress=False)[0].passed
    assert len(made[1]) == 1


def test_settings_that_are_not_finite_agree_with_themselves(tmp_path, plant):
    made = planted("a")
    made[0].settings["quick"].update(end=np.inf, start=-np.inf, tolerances=[np.nan, 1.0])
    plant(made)
    for _ in range(2):
        assert figures.reproduce("all", tmp_path, progress=False)[0].error == ""
    assert len(made[1]) == 1
    made[0].settings["quick"]["end"] = 3.0
    assert "end: stored" in figures.reproduce("all", tmp_path, progress=False)[0].error


def test_scales_do_not_mix(tmp_path, plant):
    made = planted("a")
    plant(made)
    for scale in ("quick", "paper"):
        assert figures.reproduce("all", tmp_path, scale, progress=False)[0].settings["scale"] == scale
    assert made[1] == [{"width": 3}, {"width": 100}]
    assert "--scale paper" in (tmp_path / "paper" / "index.html").read_text()


@pytest.mark.parametrize("with_runs", [False, True])
def test_a_folder_that_is_no_figures_is_neither_removed_nor_taken(tmp_path, plant, with_runs):
    made = planted("a")
    plant(made)
    own = tmp_path / "quick" / "a-name"
    (own / "runs" if with_runs else own).mkdir(parents=True)
    (own / "thesis.tex").write_text("mine")
    for fresh in (False, True, False, True):
        (refused,) = figures.reproduce("all", tmp_path, progress=False, fresh=fresh)
        assert "not the folder of a figure" in refused.error
    assert list(content(own)) == [own / "thesis.tex"]
    assert not made[1]


def test_fresh_removes_what_is_the_figures_and_keeps_what_was_put_beside_it(tmp_path, plant):
    left = []
    made = planted(
        "a", lambda folder, *_, **__: left.append(sorted(p.name for p in folder.parent.rglob("*"))) or rich_outcome()
    )
    plant(made)
    figures.reproduce("all", tmp_path, progress=False)
    own = tmp_path / "quick" / "a-name"
    (own / "notes.txt").write_text("mine")
    (own / "runs" / "one").mkdir(parents=True)
    figures.reproduce("all", tmp_path, progress=False, fresh=True)
    assert left[1] == ["notes.txt", "stamp.json"]


def test_the_digest_is_of_the_source_files(tmp_path, monkeypatch):
    found = []
    for text in ("x = 1\n", "x = 2\n", "x = 1\n"):
        package = tmp_path / str(len(found)) / "bnrank"
        (package / "figures").mkdir(parents=True)
        (package / "a.py").write_text(text)
        monkeypatch.setattr(store, "__file__", str(package / "figures" / "store.py"))
        found.append(store.code_digest.__wrapped__())
    assert found[0] == found[2] != found[1]


# ---- the page ---------------------------------------------------------------------------------------------------


def test_the_page_has_every_figure_and_a_subset_loses_none(tmp_path, plant):
    a = planted("a", lambda *_, **__: rich_outcome())
    plant(a, planted("b"), planted("c", raises), planted("d"))
    for names in (["a"], ["b"], ["c"]):
        figures.reproduce(names, tmp_path, progress=False)
    page = page_of(tmp_path)
    assert "1 fails 2 of 3" in row_of(page, "a")
    assert "all pass 1 of 1 under 1 s" in row_of(page, "b")
    assert "failed –" in row_of(page, "c")
    assert "not run yet – –" in row_of(page, "d")
    assert all(f'href="#{id}"' in page and f"id={id} " in page for id in "ABCD")
    part = part_of(page, "a")
    for text in (
        "A paper",
        "What a shows.",
        "not a number",
        "bnrank reproduce A",
        "width",
        "data",
        "Rows",
        f"bnrank {bnrank.__version__}",
    ):
        assert text in words(part), text
    assert part.index("<img") < part.index("What the source shows") < part.index("Claims: ") < part.index("To run it")
    assert part.count("data:image/svg+xml") == 1
    assert part.count("data:image/png") == 2
    assert all(len(alt) > 10 for alt in re.findall(r'<img[^>]*alt="([^"]*)"', part.split("<details>")[0]))
    assert "no such luck" in part_of(page, "c")
    assert "has not been run yet" in part_of(page, "d")
    assert [int(level) for level in re.findall("<h([1-6])", page[: page.index('id="bnrank-data"')])][:3] == [1, 2, 2]
    ids = re.findall(r"\bid=\"?([\w-]+)", page[: page.index('id="bnrank-data"')])
    assert len(ids) == len(set(ids))
    data = json.loads(re.search(r'id="bnrank-data">(.*?)</script>', page, re.S)[1])
    assert set(data) == {"A-2-history", "A-2-profile", "A-3-figure-2"}
    assert all(f"id={key}" in part for key in data)


def test_the_header_adds_up_what_is_of_this_version_only(tmp_path, plant):
    def taking(seconds, *claims):
        return lambda *_, **__: (time.sleep(seconds), Outcome("", claims))[1]

    old = planted("a", taking(1.2, PASSED, PASSED, FAILED, PASSED))
    undecided = Claim("who knows", None, 1.0, "1")
    plant(old, planted("b", taking(0, PASSED, FAILED, undecided)), planted("c"), planted("d", raises), planted("e"))
    figures.reproduce(["a", "b", "c", "d"], tmp_path, progress=False)
    assert "3 of 5 figures have run, in 1 s together; 5 of 8 claims pass. Small networks" in words(page_of(tmp_path))
    old[0].settings["quick"]["width"] = 4
    figures.reproduce("b", tmp_path, progress=False)
    page = words(page_of(tmp_path))
    assert "2 of 5 figures have run, in under 1 s together; 2 of 4 claims pass. Not counted: 1 made by another" in page
    assert "1 fails, 1 not decided 1 of 3" in row_of(page_of(tmp_path), "b")


def test_a_figure_without_claims_does_not_pass(tmp_path, plant, command):
    plant(planted("a", lambda *_, **__: Outcome("A")))
    code, out, _ = command("--quiet")
    assert code == 1
    assert re.search(r"A +a-name +no claims +–", out)
    page = page_of(tmp_path / "reproduction")
    assert "no claims – under 1 s" in row_of(page, "a")
    assert "mark good" not in page[page.index("<tbody>") :]


def test_claims_are_shown_whole_and_what_is_not_a_number_as_such(tmp_path, plant):
    plant(planted("a", lambda *_, **__: rich_outcome()))
    figures.reproduce("all", tmp_path, progress=False)
    part = part_of(page_of(tmp_path), "a")
    for caption in ("Claims: 2 of 3 pass", "Claims: 0 of 1 pass"):
        assert f'<div class="scroll whole" tabindex=0 role=region aria-label="{caption}">' in part
    assert "not a number NaN &lt; 1" in words(part)
    assert "<figcaption>L</figcaption>" in part
    assert 'alt="A, a in words: L"' in part


def test_the_page_says_how_to_run_a_figure_alone_and_what_paper_scale_has(tmp_path, plant, command):
    made = planted("a")
    for settings in made[0].settings.values():
        settings |= {"depths": (1, 2), "end": np.inf}
    plant(made, planted("b", printed=False))
    command("--quiet")
    page = page_of(tmp_path / "reproduction")
    assert "<code>bnrank reproduce A</code>" in page
    assert f"bnrank {bnrank.__version__}, source files {store.code_digest()[:8]}" in page
    assert "What the source shows" in part_of(page, "a")
    assert "What must be seen" in part_of(page, "b")
    assert re.search(
        r"setting value paper scale +scale quick – width 3 100 depths 1, 2 – end ∞ –", words(part_of(page, "a"))
    )
    command("--quiet", "--out", "my folder", "--scale", "paper")
    page = (tmp_path / "my folder" / "paper" / "index.html").read_text()
    assert "<code>bnrank reproduce A --scale paper --out &#x27;my folder&#x27;</code>" in page
    assert "paper scale</th>" not in page


def test_the_page_is_there_from_the_start_and_written_after_every_figure(tmp_path, plant):
    seen = []

    def reads(*_, **__):
        seen.append(row_of(page_of(tmp_path), "a"))
        return Outcome("B", (PASSED,))

    def reads_first(*_, **__):
        seen.append(row_of(page_of(tmp_path), "b"))
        return Outcome("A", (PASSED,))

    plant(planted("a", reads_first), planted("b", reads))
    figures.reproduce("all", tmp_path, progress=False)
    assert "not run yet" in seen[0]
    assert "all pass" in seen[1]


def test_text_of_figures_is_escaped(tmp_path, plant):
    evil = "<script>alert(1)</script>"
    made = Figure(
        "X",
        "x",
        evil,
        evil,
        evil,
        {"quick": {}, "paper": {}},
        lambda *_, **__: Outcome("", (), (), {"p": drawn()}, captions={"p": evil}),
    )
    plant((made, []), planted("y", lambda *_, **__: raises_text(evil)))
    figures.reproduce("all", tmp_path, progress=False)
    assert evil not in page_of(tmp_path)


def raises_text(text):
    raise RuntimeError(text)


def test_pictures_of_png_files_have_the_size_they_were_drawn_at(tmp_path):
    from bnrank.reporting import markup

    (tmp_path / "a.png").write_bytes(markup.drawn(drawn(), "a", "png", dpi=150))
    assert "width=384 " in markup.picture(tmp_path / "a.png", "a")
    with pytest.raises(TypeError, match="figures"):
        markup.picture(tmp_path / "a.pdf", "a")


# ---- bad input --------------------------------------------------------------------------------------------------


def test_names_are_checked_before_anything_runs_and_run_once(tmp_path, plant, monkeypatch):
    a, b = planted("a"), planted("b")
    plant(a, b)
    for names in (["A", "c-nam"], ["all", "c-nam"], "c-nam"):
        with pytest.raises(ValueError, match=r"figure: got 'c-nam'.*did you mean"):
            figures.reproduce(names, tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"figure: got 'c-nam', 'zzz', expected .*did you mean '.-name'\?$"):
        figures.reproduce(["A", "c-nam", "zzz"], tmp_path, progress=False)
    for names in (None, 3, a[0], ["A", None], [a[0]]):
        with pytest.raises(TypeError, match=r"names: got .*, expected ids or names of figures"):
            figures.reproduce(names, tmp_path, progress=False)
    with pytest.raises(ValueError, match="names: got none"):
        figures.reproduce([], tmp_path, progress=False)
    assert not list(tmp_path.iterdir())
    assert len(figures.reproduce(["b-name", "all", "A", "b"], tmp_path, progress=False)) == 2
    assert (len(a[1]), len(b[1])) == (1, 1)


def test_too_little_memory_is_said_before_the_figure_starts(tmp_path, plant, monkeypatch):
    a, b = planted("a", gigabytes={"quick": 3.0, "paper": 1.0}), planted("b")
    plant(a, b)
    monkeypatch.setattr(requirements, "memory", lambda: 2.0)
    first, second = figures.reproduce("all", tmp_path, progress=False)
    assert "needs 3 GB, and there are 2 GB" in first.error
    assert "needs 3 GB" in part_of(page_of(tmp_path), "a")
    assert (a[1], second.passed) == ([], True)
    assert not (tmp_path / "quick" / "a-name").exists()
    assert figures.reproduce("a", tmp_path, "paper", progress=False)[0].passed
    monkeypatch.setattr(requirements, "memory", lambda: None)  # where it cannot be told
    assert figures.reproduce("a", tmp_path, progress=False)[0].passed


def machine(root, available=8_000_000, groups="", **files):
    """Write the files of a kernel; memory in kB."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 9000000 kB\nMemAvailable:  {available} kB\n")
    (root / "proc/self/statm").write_text("0 0 0 0")
    (root / "proc/self/cgroup").write_text(groups)
    for path, text in files.items():
        path = root / "sys/fs/cgroup" / path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return root


def group(at, limit, used, cache, version=2):
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    stat = f"anon 5\n{names[2]} {cache}\n"
    return {f"{at}/{name}": text for name, text in zip((*names[:2], "memory.stat"), (limit, used, stat), strict=True)}


@pytest.mark.parametrize(
    ("files", "groups", "expected"),
    [
        ({}, "", 8.192),
        (group("", "max\n", 10**9, 0), "0::/\n", 8.192),
        (group("", 3 * 10**9, 10**9, 5 * 10**8), "0::/\n", 2.5),
        (group("", 3 * 10**9, 10**9, 0) | group("a/b", "max", 1, 0), "0::/a/b\n", 2.0),
        (group("", 3 * 10**9, 10**9, 0) | group("a/b", 10**9, 10**8, 0), "0::/a/b\n", 0.9),
        (group("memory", 4 * 10**9, 10**9, 10**8, 1), "3:cpu:/x\n2:memory,hugetlb:/docker/abc\n", 3.1),
        (group("memory", 2**63 - 4096, 10**9, 0, 1), "2:memory:/\n", 8.192),
    ],
)
def test_memory_is_what_kernel_and_control_groups_leave(tmp_path, files, groups, expected):
    assert requirements.memory(machine(tmp_path, groups=groups, **files)) == pytest.approx(expected)


def test_memory_is_no_more_than_the_limit_on_addresses_leaves(tmp_path, monkeypatch):
    page = os.sysconf("SC_PAGE_SIZE")
    machine(tmp_path)
    (tmp_path / "proc/self/statm").write_text("900 500 0 0")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: {resource.RLIMIT_AS: (2 * 10**9, -1)}[kind])
    assert requirements.memory(tmp_path) == pytest.approx(2 - 400 * page / 1e9)
    assert requirements.memory(tmp_path / "nothing") <= 2


def test_memory_of_this_process_counts_and_elsewhere_that_of_the_machine(tmp_path):
    machine(tmp_path)
    (tmp_path / "proc/self/statm").write_text("900000 500000 0 0")
    assert requirements.memory(tmp_path) == pytest.approx(8.192 + 500000 * os.sysconf("SC_PAGE_SIZE") / 1e9)
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert requirements.memory(tmp_path / "nothing") == pytest.approx(whole / 1e9)
    here = requirements.memory()
    assert here is None or here > 0.05


def test_missing_data_are_said_before_the_figure_starts_with_what_to_fetch(tmp_path, plant, monkeypatch):
    monkeypatch.setenv("BNRANK_DATA", str(tmp_path / "empty"))
    monkeypatch.setattr(images.pooch, "os_cache", lambda _: tmp_path / "cache")
    monkeypatch.setattr(images, "_download", lambda name, folder: (folder / name, ["no network"]))
    a, b = planted("a", data={"paper": ("mnist",)}), planted("b")
    plant(a, b)
    first, second = figures.reproduce("all", tmp_path, "paper", progress=False)
    for text in ("/train-images-idx3-ubyte.gz\n", "fetch 4 files and put them into", "BNRANK_DATA", "no network"):
        assert text in first.error
    assert (a[1], second.passed) == ([], True)
    assert figures.reproduce("a", tmp_path, "quick", progress=False)[0].passed


def test_what_will_not_run_is_said_before_the_first_starts_and_data_are_looked_for_once(plant, command, monkeypatch):
    asked = []

    def absent():
        asked.append("mnist")
        raise ValueError("no mnist")

    monkeypatch.setattr(requirements, "DATA", {"mnist": absent})
    monkeypatch.setattr(requirements, "memory", lambda: 2.0)
    needs = {"quick": ("mnist",)}
    a, b, c = planted("a"), planted("b", data=needs), planted("c", data=needs)
    d = planted("d", gigabytes={"quick": 3.0})
    plant(a, b, c, d)
    code, out, _ = command("--quiet")
    assert (code, asked) == (1, ["mnist"])
    order = [
        "B b-name, quick scale, not run: data that",
        "C c-name, quick",
        "D d-name, quick",
        "A a in words ...",
        "Summ",
    ]
    places = [out.index(text) for text in order]
    assert places == sorted(places)
    summary = out[out.index("Summary") :]
    assert re.search(r"A +a-name +pass +1 of 1", summary)
    for name in "bcd":
        assert re.search(rf"{name}-name +not run +–", summary)
    assert [len(calls) for _, calls in (a, b, c, d)] == [1, 0, 0, 0]


def test_memory_that_went_meanwhile_is_noticed(tmp_path, plant, monkeypatch):
    free = [4.0]
    monkeypatch.setattr(requirements, "memory", lambda: free[0])

    def make(*_, **__):
        free[0] = 1.0
        return Outcome("A", (PASSED,))

    b = planted("b", gigabytes={"quick": 3.0})
    plant(planted("a", make), b)
    first, second = figures.reproduce("all", tmp_path, progress=False)
    assert (first.passed, b[1]) == (True, [])
    assert "needs 3 GB, and there are 1 GB" in second.error


def test_one_bad_figure_or_folder_does_not_stop_the_others(tmp_path, plant):
    bad = {
        "a": lambda *_, **__: Outcome("A", (PASSED,), (), {"a/b": drawn()}),
        "b": lambda *_, **__: Outcome("B", (Claim("who knows", None, 1.0, "1"),)),
        "c": lambda *_, **__: None,
        "d": lambda *_, **__: Outcome("D", (None,)),
    }
    plant(*(planted(name, make) for name, make in bad.items()), planted("e"), planted("f"), planted("g"))
    (tmp_path / "quick" / "f-name" / "claims.json").mkdir(parents=True)
    (tmp_path / "quick" / "e-name").write_text("mine")
    for fresh in (False, True):
        outcomes = figures.reproduce("all", tmp_path, progress=False, fresh=fresh)
        assert [outcome.passed for outcome in outcomes] == [False] * 6 + [True]
    expected = ["pictures: got the name 'a/b'", "", "", "", "cannot write to", "cannot write to"]
    assert all(text in outcome.error for text, outcome in zip(expected, outcomes, strict=False))
    page = page_of(tmp_path)
    assert "1 not decided 0 of 1" in row_of(page, "b")
    assert [name for name in "acdef" if "failed –" not in row_of(page, name)] == []
    assert "cannot write to" in part_of(page, "e")


def test_a_checkpoint_that_is_damaged_is_answered_with_what_the_caller_can_do(tmp_path, plant):
    def make(folder, progress, **_):
        net, task = bnrank.MLP([20, 3, 20], seed=0), bnrank.tasks.low_rank_map(n=20)
        bnrank.train(net, task, steps=2, out=folder / "one", progress=progress)
        (folder / "one" / "checkpoint.safetensors").write_bytes(b"damaged")
        bnrank.train(net, task, steps=2, out=folder / "one", progress=progress)

    plant(planted("a", make))
    (outcome,) = figures.reproduce("all", tmp_path, progress=False)
    assert outcome.error.startswith(
        "--fresh (fresh=True) throws away what is stored of the figure and starts anew; Value"
    )


def test_every_figure_says_what_it_needs():
    for figure in figures.FIGURES:
        assert set(figure.gigabytes) == set(figures.SCALES), figure.id
        assert set(figure.data) <= set(figures.SCALES)
        assert all(name in requirements.DATA for names in figure.data.values() for name in names)
        assert 0.2 < figure.gigabytes["quick"] <= 8


@pytest.mark.parametrize("at", ["claims.json", "stamp.json", "p.png", "index.html", "spent.json"])
def test_a_full_disk_is_one_clear_error(tmp_path, plant, monkeypatch, at):
    write = store.write_atomically

    def full(path, data):
        if Path(path).name == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    monkeypatch.setattr(store, "write_atomically", full)
    monkeypatch.setattr("bnrank._files.write_atomically", full)
    plant(planted("a", lambda *_, **__: Outcome("A", (PASSED,), (), {"p": drawn()})))
    with pytest.raises(ValueError, match="No space left on device"):
        figures.reproduce("all", tmp_path, progress=False)


def test_a_folder_that_cannot_be_written_to_is_one_clear_error(tmp_path, plant, command):
    plant(planted("a"))
    (tmp_path / "taken").write_text("mine")
    code, _, error = command("--out", "taken")
    assert code == 2
    assert error.startswith("error out: cannot write to 'taken/quick'")
    assert len(error.splitlines()) <= 2


# ---- the command ------------------------------------------------------------------------------------------------


def test_the_command_says_what_runs_and_what_came_out_as_it_goes(command, plant, tmp_path):
    plant(planted("a"), planted("b", lambda *_, **__: Outcome("B", (FAILED,))), planted("c", raises))
    code, out, _ = command("--quiet")
    assert code == 1
    order = ["A a in words ...", "A a-name, quick scale, under 1 s", "one is one", "B b in words ...", "one is two"]
    order += ["C c in words ...", "RuntimeError: no such luck", "Summary", "The page: reproduction/quick/index.html"]
    places = [out.index(text) for text in order]
    assert places == sorted(places)
    summary = out[out.index("Summary") :]
    assert re.search(r"A +a-name +pass +1 of 1", summary)
    assert re.search(r"B +b-name +fail +0 of 1", summary)
    assert re.search(r"C +c-name +fail +–", summary)
    code, out, _ = command("a", "--quiet")
    assert (code, "stored before" in out, "a in words" in out) == (0, True, False)
    code, out, _ = command("a", "--fresh", "--quiet")
    assert (code, "stored before" in out, "a in words" in out) == (0, False, True)


def test_list_shows_all_figures_and_what_they_need_and_runs_none(command, plant, tmp_path, monkeypatch):
    a, b = planted("a", gigabytes={"quick": 3.0}, data={"quick": ("mnist",)}), planted("b")
    plant(a, b)
    monkeypatch.setattr(requirements, "DATA", {"mnist": lambda: None})
    code, out, _ = command("--list")
    assert (code, a[1], list(tmp_path.iterdir())) == (0, [], [])
    assert re.search(r"A +a-name +– +not run yet +– +3 GB", out)
    assert re.search(r"a in words +mnist", out)
    assert "b in words" in out
    assert "b in words" not in command("--list", "a-name")[1]
    code, _, error = command("--list", "a-nam")
    assert code == 2
    assert "did you mean 'a-name'" in " ".join(error.split())
    command("a", "--quiet")
    code, out, _ = command("--list")
    assert re.search(r"A +a-name +1 of 1 +all pass +under 1 s", out)
    assert "b in words" in out
    assert (len(a[1]), len(b[1])) == (1, 0)


def test_the_command_ends_with_130_at_ctrl_c(command, plant):
    def make(*_, **__):
        signal.raise_signal(signal.SIGINT)

    plant(planted("a", make))
    code, out, error = command("--fresh", "--quiet")
    assert code == 130
    assert "the same command without --fresh goes on" in out
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "under 1 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599.7, "1 h 0 min"), (9000, "2 h 30 min")],
)
def test_durations(seconds, text):
    assert gallery.duration(seconds) == text
