"""`bnrank reproduce`: results of other versions, and files of others, are left alone."""

import dataclasses
import json

import numpy as np
import pytest

from bnrank import figures
from bnrank.figures.harness import figure as harness
from bnrank.figures.harness import store

from .reproduce_common import change, page_of, part_of, planted, raises, rich_outcome, row_of

pytestmark = pytest.mark.usefixtures("small_pictures")


def other_version(figure, what):
    """The figure after its author raised its version, or changed a setting."""
    if what == "version":
        return dataclasses.replace(figure, version=figure.version + 1)
    change(figure, **{what: 4})
    return figure


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("what", ["version", "width"])
@pytest.mark.parametrize("finished", [True, False])
def test_results_of_another_version_are_refused_and_left_alone(tmp_path, plant, what, finished):
    first, second = planted("a", None if finished else raises), planted("b")
    plant(first, second)
    figures.reproduce("a", tmp_path, progress=False)
    if not finished:
        (tmp_path / "quick" / "a-name" / "claims.json").unlink()
    own = tmp_path / "quick" / "a-name"
    before = content(own)
    first = (other_version(first[0], what), first[1])
    plant(first, second)
    refused, other = figures.reproduce("all", tmp_path, progress=False)
    assert other.passed
    assert len(first[1]) == 1
    assert content(own) == before
    assert f"{what}: stored" in refused.error
    assert "now" in refused.error
    assert "--fresh" in refused.error
    assert str(own) in refused.error
    page = page_of(tmp_path)
    assert "results of other settings or of another version" in part_of(page, "a")
    assert ("all pass (other settings)" if finished else "not run") in row_of(page, "a")
    figures.reproduce("a", tmp_path, progress=False, resume=False)
    assert len(first[1]) == 2
    assert (tmp_path / "quick" / "b-name" / "claims.json").exists()
    assert store.differences(own, first[0].stamp("quick")) == []


def test_results_without_a_stamp_are_refused(tmp_path, plant):
    made = planted("a")
    plant(made)
    runs = tmp_path / "quick" / "a-name" / "runs"
    runs.mkdir(parents=True)
    (refused,) = figures.reproduce("all", tmp_path, progress=False)
    assert "does not record its settings" in refused.error
    assert not made[1]
    (done,) = figures.reproduce("all", tmp_path, progress=False, resume=False)
    assert done.passed


def test_run_refuses_results_of_another_version_and_unknown_settings(tmp_path, plant):
    made, calls = planted("a")
    plant((made, calls))
    figures.reproduce("all", tmp_path, progress=False)
    newer = other_version(made, "version")
    with pytest.raises(ValueError, match="version: stored 1, now 2"):
        newer.run("quick", tmp_path / "quick", progress=False)
    with pytest.raises(ValueError, match="width: stored 3, now 5"):
        made.run("quick", tmp_path / "quick", progress=False, width=5)
    assert newer.run("quick", tmp_path / "quick", progress=False, resume=False).passed
    plant((newer, calls))
    assert figures.reproduce("all", tmp_path, progress=False)[0].passed
    assert len(calls) == 2
    with pytest.raises(ValueError, match=r"A a-name has no setting 'widht'.*did you mean 'width'"):
        made.run("quick", tmp_path, progress=False, widht=5)


def test_settings_and_not_the_source_files_decide(tmp_path, plant, monkeypatch):
    made, calls = planted("a")
    plant((made, calls))
    figures.reproduce("all", tmp_path, progress=False)
    monkeypatch.setattr(harness, "__version__", "9.9")
    assert figures.reproduce("all", tmp_path, progress=False)[0].passed
    assert len(calls) == 1


@pytest.mark.parametrize("stamp", [None, 3, "version", ["x"]])
def test_a_damaged_stamp_is_named(tmp_path, plant, command, stamp):
    made = planted("a")
    plant(made)
    figures.reproduce("all", tmp_path / "reproduction", progress=False)
    path = tmp_path / "reproduction" / "quick" / "a-name" / "stamp.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"stamp": stamp}))
    (refused,) = figures.reproduce("all", tmp_path / "reproduction", progress=False)
    assert "stamp.json' is damaged: its contents differ from what was written" in refused.error
    assert command("--list")[0] == 0
    assert figures.reproduce("all", tmp_path / "reproduction", progress=False, resume=False)[0].passed
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
    change(made[0], end=np.inf, width=-np.inf, depths=(np.nan, 1.0))
    plant(made)
    for _ in range(2):
        assert figures.reproduce("all", tmp_path, progress=False)[0].error == ""
    assert len(made[1]) == 1
    change(made[0], end=3.0)
    assert "end: stored" in figures.reproduce("all", tmp_path, progress=False)[0].error


def test_scales_do_not_mix(tmp_path, plant):
    made = planted("a")
    plant(made)
    for scale in ("quick", "paper"):
        assert figures.reproduce("all", tmp_path, scale, progress=False)[0].settings["scale"] == scale
    assert [settings.width for settings in made[1]] == [3, 100]
    assert "--scale paper" in (tmp_path / "paper" / "index.html").read_text()


@pytest.mark.parametrize("with_runs", [False, True])
def test_a_folder_that_is_no_figures_is_neither_removed_nor_taken(tmp_path, plant, with_runs):
    made = planted("a")
    plant(made)
    own = tmp_path / "quick" / "a-name"
    (own / "runs" if with_runs else own).mkdir(parents=True)
    (own / "thesis.tex").write_text("mine")
    for resume in (True, False, True, False):
        (refused,) = figures.reproduce("all", tmp_path, progress=False, resume=resume)
        assert "not the folder of a figure" in refused.error
    assert list(content(own)) == [own / "thesis.tex"]
    assert not made[1]


def test_fresh_removes_what_is_the_figures_and_keeps_what_was_put_beside_it(tmp_path, plant):
    left = []
    made = planted(
        "a", lambda _, folder, __: left.append(sorted(p.name for p in folder.parent.rglob("*"))) or rich_outcome()
    )
    plant(made)
    figures.reproduce("all", tmp_path, progress=False)
    own = tmp_path / "quick" / "a-name"
    (own / "notes.txt").write_text("mine")
    (own / "runs" / "one").mkdir(parents=True)
    figures.reproduce("all", tmp_path, progress=False, resume=False)
    assert left[1] == [".lock", "notes.txt", "stamp.json"]
