"""`bnrank reproduce`: results of other versions, and files of others, are left alone."""

import json

import numpy as np
import pytest

from bnrank import figures
from bnrank.figures.harness import store

from .reproduce_common import page_of, part_of, planted, raises, rich_outcome, row_of

pytestmark = pytest.mark.usefixtures("small_pictures")


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
        (package / "figures" / "harness").mkdir(parents=True)
        (package / "a.py").write_text(text)
        monkeypatch.setattr(store, "__file__", str(package / "figures" / "harness" / "store.py"))
        found.append(store.code_digest.__wrapped__())
    assert found[0] == found[2] != found[1]
