"""Every result that prints itself is shown by a notebook with the same numbers."""

import importlib
import inspect
import pkgutil

import pytest

import bnrank
import results
from bnrank._core.results import Printed
from notebooks import numbers, shown

ROOMS = ("tasks", "networks", "measures", "training", "theory", "discovery", "reporting")
PRIVATE = {"_Bound", "Record"}  # bases of classes that are made


def classes():
    """Every class of the rooms that defines how it prints."""
    found = {}
    for room in ROOMS:
        package = importlib.import_module(f"bnrank.{room}")
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(info.name)).values():
                if inspect.isclass(value) and value.__module__.startswith(f"bnrank.{room}"):
                    found[value] = value.__name__
    return found


def test_every_class_that_prints_itself_is_shown_and_made_here():
    of_rooms = classes()
    printing = {value for value in of_rooms if "__str__" in vars(value)}
    assert len(printing) > 25
    assert not [value for value in printing if not issubclass(value, Printed)]
    made = {of_rooms[value] for value in of_rooms if issubclass(value, Printed)}
    assert made - PRIVATE == set(results.MAKERS) | {"Sweep"}


@pytest.mark.parametrize("name", results.MAKERS)
def test_a_notebook_shows_the_numbers_that_are_printed(name):
    found = results.made(name)
    assert type(found).__name__ == name
    page = shown(found._repr_html_())
    assert numbers(str(found)) <= numbers(page.text)
    for word in str(found).split():
        assert word in page.text or not word.isalpha(), word


def test_a_sweep_is_shown_with_a_row_per_network(tmp_path):
    found = results.swept(tmp_path / "sweep")
    page = shown(found._repr_html_())
    heading, *rows = page.tables[0]
    assert heading[:3] == ["depth", "seed", "status"]
    assert [row[:3] for row in rows] == [[d, s, "finished"] for d in "23" for s in "01"]
    assert numbers(str(found)) <= numbers(page.text)
    assert "depth" not in str(found)


def test_names_of_layers_are_escaped():
    for name in ("Listing", "LayerGraph", "Reading", "LayerTable", "Structure", "Watch"):
        html = results.made(name)._repr_html_()
        assert "<b>" not in html, name
        assert "&lt;b&gt;&amp;amp;" in html, name
        assert results.NAME in shown(html).text, name


def test_the_front_door_gives_the_table_of_a_profile():
    found = results.made("LayerTable")
    assert type(found) is type(bnrank.layer_table(found.profile))
