"""Phase diagrams, and the page of a sweep, also while it runs."""

import numpy as np
import pandas as pd
import pytest

import bnrank
from bnrank.reporting.charts.sweeps import failures, heat_map, sweep_figures, sweep_text
from bnrank.training.sweeping import leases
from bnrank.training.sweeping.diagrams import phase_diagram
from bnrank.training.sweeping.rows import Writer

TASK = bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=4, latent=3, rank=2, seed=1)
AXES = {"depths": [2, 3, 4], "ridges": [1e-3, 1e-1], "seeds": [0, 1]}
QUICK = {"steps": 6, "processes": 1, "progress": False, "grid": {"width": [4]}}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "out"
    return folder, bnrank.sweep(TASK, out=folder, **AXES, **QUICK)


def test_a_cell_is_the_mean_of_its_networks(swept):
    folder, results = swept
    drawn = phase_diagram(results, "depth", "ridge", "loss")
    assert (drawn.xs, drawn.ys) == ([2, 3, 4], [1e-3, 1e-1])
    expected = [
        [np.mean([results.loss.sel(depth=d, ridge=r, seed=s).item() for s in (0, 1)]) for d in drawn.xs]
        for r in drawn.ys
    ]
    np.testing.assert_allclose(drawn.means, expected, rtol=1e-12)
    assert (drawn.counts == 2).all()
    stored = phase_diagram(bnrank.Sweep.open(folder).to_frame(), "depth", "ridge", "loss")
    np.testing.assert_allclose(stored.means, expected, rtol=1e-12)


def test_cells_without_a_network_are_empty():
    table = pd.DataFrame({"depth": [2, 3, 3], "ridge": [0.1, 0.2, 0.2], "rank": [1, None, 4], "name": ["a", "b", "c"]})
    drawn = phase_diagram(table, "depth", "ridge", "rank")
    np.testing.assert_array_equal(drawn.means, [[1, np.nan], [np.nan, 4]])
    np.testing.assert_array_equal(drawn.counts, [[1, 0], [0, 1]])
    none = phase_diagram(table.assign(rank=None), "depth", "ridge", "rank")
    assert none.title == "rank: no network has one"
    assert len(none.draw().figure.axes) == 1  # without colors
    with pytest.raises(ValueError, match="value: got 'name', which holds texts or no numbers, expected numbers"):
        phase_diagram(table, "depth", "ridge", "name")
    with pytest.raises(ValueError, match="x: got 'deepth', expected one of depth, ridge"):
        phase_diagram(table, "deepth", "ridge", "rank")
    with pytest.raises(ValueError, match="three different columns"):
        phase_diagram(table, "depth", "depth", "rank")
    with pytest.raises(TypeError, match="results: got"):
        phase_diagram([1], "depth", "ridge", "rank")


def test_values_far_apart_have_a_logarithmic_scale():
    table = pd.DataFrame({"a": [1, 2], "b": [1, 1], "v": [1e-6, 1.0]})
    drawn = phase_diagram(table, "a", "b", "v")
    assert drawn.logarithmic
    figure = heat_map(drawn)
    assert np.array(figure.data[0].z).ravel().tolist() == [-6, 0]
    assert figure.data[0].colorbar.ticktext == ("1e-06", "3.16e-05", "0.001", "0.0316", "1")
    assert not phase_diagram(table.assign(v=[0.0, 1.0]), "a", "b", "v").logarithmic
    texts = [text.get_text() for text in drawn.draw().texts]
    assert texts == ["1e-06", "1"]


def test_axes_of_numbers_texts_and_none_are_drawn(tmp_path):
    settings = [
        {"init": init, "batch_size": size, "depth": depth}
        for init in ("he", 0.1)
        for size in (None, 8)
        for depth in (2, 3)
    ]
    settings = [setting | {"width": 4} for setting in settings]
    quick = {name: value for name, value in QUICK.items() if name != "grid"} | {"optimizer": "adam"}
    table = bnrank.sweep(TASK, grid=settings, out=tmp_path / "out", **quick)
    stored = bnrank.Sweep.open(tmp_path / "out")
    for results in (table, stored.to_frame()):
        drawn = phase_diagram(results, "init", "batch_size", "loss")
        assert (drawn.xs, drawn.ys) == ([0.1, "he"], [8, "None"])
        means = [[results.loss[[a, a + 1]].mean() for a in row] for row in ((6, 2), (4, 0))]
        np.testing.assert_allclose(drawn.means, means, rtol=1e-12)
    assert stored.run(init="he", batch_size=None, depth=2).summary.loss.values == table.loss[0]
    captions = list(sweep_figures(stored))
    assert "loss, mean of 2 networks per cell, over init and batch size" in captions
    assert bnrank.report(stored, tmp_path / "page.html").exists()


def test_a_result_of_many_numbers_per_network_is_refused(swept):
    _, results = swept
    with pytest.raises(ValueError, match="'weight_singular_values', over layer and index, expected one number per net"):
        phase_diagram(results, "depth", "ridge", "weight_singular_values")
    first = results.sel(layer=1, index=1)
    assert (phase_diagram(first, "depth", "ridge", "weight_singular_values").counts == 2).all()


def test_a_sweep_of_which_nothing_is_trained_is_drawn(tmp_path):
    bnrank.sweep(TASK, out=tmp_path, **AXES, **QUICK | {"processes": 0})
    stored = bnrank.Sweep.open(tmp_path)
    assert stored.plot().get_title() == "bottleneck rank: no network has one"
    assert stored.to_frame()[["status", "loss", "bottleneck_rank"]].isna().all().tolist() == [False, True, True]


def test_a_sweep_draws_and_reports_itself(swept, tmp_path):
    folder, results = swept
    stored = bnrank.Sweep.open(folder)
    assert stored.axes == ["depth", "ridge", "seed"]
    assert stored.plot("depth", "ridge", "loss").get_xlabel() == "depth"
    assert bnrank.plots.phase_diagram(results, "seed", "ridge", "cost").get_xlabel() == "seed"
    captions = list(sweep_figures(stored))
    assert "loss, mean of 2 networks per cell, over depth and ridge" in captions
    assert sweep_text(stored).startswith("12 of 12 networks are finished (100 percent).\n\nFolder: ")
    page = bnrank.report(stored, tmp_path / "page.html").read_text()
    assert "12 of 12 networks are finished" in page
    assert 'http-equiv="refresh"' not in page


def test_the_page_of_a_running_sweep_shows_failures_and_what_is_left(tmp_path, monkeypatch):
    from bnrank.training.sweeping import driver

    monkeypatch.setattr(driver, "drain", lambda folder, groups, call: iter(()))  # as if it was killed at once
    out = tmp_path / "out"
    bnrank.sweep(TASK, out=out, **AXES, **QUICK)
    groups = bnrank.Sweep.open(out).folder.groups()
    first, second = list(groups.values())[:2]
    error = "ValueError: <planted>\nTraceback (most recent call last):\n  File x"
    with Writer(out) as writer:
        writer.append([{"key": m.key, "status": "failed", "error": error} for m in first.members])
    page = bnrank.reporting.follow(out, tmp_path / "page.html", max_minutes=0).read_text()
    assert "0 of 12 networks are finished (0 percent), 4 failed, 8 waiting. Nobody is at work on what is left." in page
    assert "4 failed, as at depth 2, ridge 0.001, seed 0: ValueError: &lt;planted&gt;" in page
    assert "<pre>ValueError: &lt;planted&gt;\nTraceback" in page
    lease = leases.take(out, second.id)
    text = sweep_text(bnrank.Sweep.open(out))
    assert "4 failed, 4 running, 4 waiting." in text
    lease.release()


def test_a_page_is_written_until_the_sweep_ends(tmp_path, monkeypatch):
    from bnrank.reporting import live
    from bnrank.training.sweeping import driver

    out, page, pages = tmp_path / "out", tmp_path / "page.html", []
    with monkeypatch.context() as patch:
        patch.setattr(driver, "drain", lambda folder, groups, call: iter(()))
        bnrank.sweep(TASK, out=out, **AXES, **QUICK)

    def sleep(seconds):
        assert seconds == 7
        pages.append(page.read_text())
        bnrank.sweep(TASK, out=out, **AXES | {"depths": [[2], [2, 3, 4]][len(pages) - 1]}, **QUICK)

    monkeypatch.setattr(live.time, "sleep", sleep)
    bnrank.reporting.follow(out, page, every=7)
    assert len(pages) == 2
    assert all('<meta http-equiv="refresh" content="7">' in text for text in pages)
    assert "4 of 12 networks are finished (33 percent), 8 waiting" in pages[1]
    assert "12 of 12" in page.read_text()
    assert 'http-equiv="refresh"' not in page.read_text()
    with pytest.raises(ValueError, match=r"folder: got .*expected the folder of a sweep"):
        bnrank.reporting.follow(tmp_path, page)


def test_failures_need_not_have_all_axes_of_the_folder(tmp_path):
    bnrank.sweep(TASK, depths=[2], out=tmp_path, **QUICK | {"optimizer": "adam"})
    grid = {"width": [4], "lr": [1e-3, 1e-2]}
    bnrank.sweep(TASK, depths=[2], out=tmp_path, **QUICK | {"grid": grid, "optimizer": "adam"})
    stored = bnrank.Sweep.open(tmp_path)
    rows = [row | {"status": "failed", "error": "a"} for row in stored.rows]
    (title, _), *_ = failures(bnrank.Sweep(stored.folder, rows))
    assert title == "3 failed: a"


def test_errors_of_one_kind_are_one_entry(swept):
    folder, _ = swept
    stored = bnrank.Sweep.open(folder)
    rows = [row | {"status": "failed", "error": ["a", "b"][i % 3 == 0]} for i, row in enumerate(stored.rows)]
    found = failures(bnrank.Sweep(stored.folder, rows))
    assert [(title.split(" failed")[0], error) for title, error in found] == [("8", "a"), ("4", "b")]
