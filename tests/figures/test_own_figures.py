"""Figures of users: reproduced beside those of the library, and what is refused."""

import dataclasses

import pytest

from bnrank import figures
from bnrank.figures import Figure, Outcome
from bnrank.figures.harness import requirements

from .reproduce_common import PASSED, Settings, planted, row_of


def test_own_figures_are_reproduced_beside_those_of_the_library(tmp_path, plant):
    theirs, own = planted("a"), planted("b")
    plant(theirs)
    first, second = figures.reproduce(["A", own[0]], tmp_path, progress=False)
    assert (first.figure, second.figure) == ("A a-name", "B b-name")
    assert figures.reproduce(own[0], tmp_path, progress=False)[0].passed
    assert len(own[1]) == 1  # opened, not made again
    page = (tmp_path / "quick" / "index.html").read_text(encoding="utf-8")
    assert "all pass" in row_of(page, "a")
    assert "all pass" in row_of(page, "b")
    assert [entry.figure.id for entry in figures.listing(tmp_path, names=[own[0], "a"])] == ["B", "A"]


def test_two_figures_of_one_name_are_refused(tmp_path, plant):
    plant(planted("a"))
    for names in (planted("a")[0], [planted("b")[0], planted("b")[0]]):
        with pytest.raises(ValueError, match=r"names: got two figures '.', expected figures of different ids"):
            figures.reproduce(names, tmp_path, progress=False)
    with pytest.raises(TypeError, match="names: got"):
        figures.reproduce([3], tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_settings_are_instances_of_dataclasses_for_known_scales(tmp_path):
    figure = planted("a")[0]
    for wrong in ({"quick": {"width": 3}}, {"quick": Settings}, {"quick": None}):
        with pytest.raises(TypeError, match=r"settings: got .*, expected an instance of a dataclass for every scale"):
            dataclasses.replace(figure, settings=wrong)
    for name in ("settings", "gigabytes", "data"):
        with pytest.raises(ValueError, match=r"a scale: got 'quik' \(str\), .*; did you mean 'quick'"):
            dataclasses.replace(figure, **{name: {"quik": Settings()}})
    one = dataclasses.replace(figure, settings={"quick": Settings()})
    with pytest.raises(ValueError, match=r"scale: got 'paper' \(str\), expected one of 'quick'"):
        one.run("paper", tmp_path, progress=False)


@pytest.mark.parametrize("scale", figures.SCALES)
def test_a_figure_of_one_scale_does_not_stop_the_others(tmp_path, plant, scale):
    theirs, (own, calls) = planted("a"), planted("b")
    plant(theirs)
    other = next(name for name in figures.SCALES if name != scale)
    lacks = dataclasses.replace(own, settings={other: Settings()})
    error = f"no settings for scale {scale}; the figure has those for {other}"
    for resume in (True, False):
        refused, ran = figures.reproduce([lacks, "A"], tmp_path, scale, progress=False, resume=resume)
        assert (refused.error, calls, ran.passed) == (error, [], True)
    page = (tmp_path / scale / "index.html").read_text(encoding="utf-8")
    assert error in page
    assert "all pass" in row_of(page, "a")
    assert [entry.refused for entry in figures.listing(tmp_path, scale, lacks)] == [error]
    has = dataclasses.replace(own, settings={scale: Settings()})
    assert figures.reproduce([has, "A"], tmp_path, scale, progress=False)[0].passed
    assert "all pass" in row_of((tmp_path / scale / "index.html").read_text(encoding="utf-8"), "b")


def test_a_name_is_that_of_a_folder_in_out(tmp_path):
    figure = planted("a")[0]
    for name in ("../escaped", str(tmp_path / "there"), "..", ".", "", "a/b", "a\\b", "a\nb"):
        with pytest.raises(ValueError, match=r"^name: got '.*', expected a valid file name$"):
            dataclasses.replace(figure, name=name)


def test_a_result_that_is_no_outcome_is_named(tmp_path):
    for wrong in (None, PASSED, {"claims": ()}):
        outcome = planted("a", lambda *_, wrong=wrong: wrong or 0)[0].run(
            "quick", tmp_path, progress=False, resume=False
        )
        assert "make: got " in outcome.error
        assert "expected a result that is a bnrank.Outcome" in outcome.error


def test_data_sets_that_are_unknown_are_named(tmp_path):
    figure = planted("a", data={"quick": ("films",)})[0]
    assert "data: got 'films' (str), expected one of 'mnist'" in requirements.lacking(figure, "quick", {})


def test_what_users_need_is_public():
    assert isinstance(planted("a")[0], Figure)
    assert figures.claims.at_least("s", 2.0, 1).passed
    assert Outcome(claims=(figures.claims.near("s", 2.0, 1.9, 0.2),)).passed
