"""The site: what its extensions write before a build, and the check of what was built (``make docs``)."""

import inspect
import json
import re
import sys
from pathlib import Path

import pytest

import bnrank
from bnrank.figures import FIGURES, Claim, Outcome

pytest.importorskip("sphinx", reason="the extra 'docs' is not installed")
ROOT = Path(__file__).parents[1]
NAME = re.compile(r"`(bnrank(?:\.\w+)+)`")
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from benchmarks.pages import store  # noqa: E402
from bnrank_site import api, check, docstrings, gallery, links, notebooks, pictures, sources  # noqa: E402


def test_the_api_documents_every_public_name_once():
    pages = api.pages()
    named = [name for page in pages for name in page.names]
    assert len(named) == len(set(named)) > 250
    values = {id(value) for page in pages for value in page.names.values()}
    modules = {page.module for page in pages}
    for parent in [bnrank, *modules]:
        for name in getattr(parent, "__all__", ()):
            value = getattr(parent, name)
            assert name.startswith("_") or id(value) in values or value in modules, (parent.__name__, name)


def test_a_name_is_documented_at_its_shortest_path():
    named = {name for page in api.pages() for name in page.names}
    assert {"bnrank.train", "bnrank.Jacobian", "bnrank.rank", "bnrank.plots.plateaus"} <= named
    assert not {"bnrank.training.train", "bnrank.measures.Jacobian", "bnrank.theory.rank"} & named
    for name in named:
        assert api.public(name) is not None, name


def test_every_public_function_and_class_of_the_api_has_a_summary():
    for page in api.pages():
        for name, value in page.names.items():
            assert not (inspect.isclass(value) or inspect.isfunction(value)) or api.summary(value), name


def test_pages_of_the_api_are_written(tmp_path):
    files = api.write(tmp_path)
    assert len(files) == len(api.pages()) + 1
    (tmp_path / "gone.rst").write_text("old")
    api.write(tmp_path)
    assert not (tmp_path / "gone.rst").exists()
    text = (tmp_path / "theory.rst").read_text()
    assert ".. autofunction:: bnrank.rank" in text
    assert ":members: exact" in text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("log |Jf(x)|_+ and ||W||_F^2", r"log \|Jf(x)\|\_+ and \|\|W\|\|_F^2"),
        ("``a|b`` and `c*d` and :func:`~bnrank.train`", "``a|b`` and `c*d` and :func:`~bnrank.train`"),
        ("*emphasis*, **strong**, 2 * 3", r"*emphasis*, **strong**, 2 \* 3"),
        ("* a bullet with z* in it", r"* a bullet with z\* in it"),
        ("n_components_ is fitted", r"n_components\_ is fitted"),
    ],
)
def test_formulas_in_docstrings_are_just_characters(line, expected):
    assert docstrings.escaped(line) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bnrank.train", (True, "bnrank.train")),
        ("bnrank.training.trainer.train", (True, "bnrank.train")),
        ("bnrank.theory.rank_bounds.rank", (True, "bnrank.rank")),
        ("bnrank.Run.history", (True, "bnrank.Run.history")),
        ("bnrank.frequencies", (True, "bnrank.frequencies")),
        ("bnrank.discovery.attention.FactoredAttention", (True, "bnrank.discovery.attention.FactoredAttention")),
        ("bnrank.measures.operators.layer_singular_values", (True, "")),
        ("bnrank.Run.nothing", (False, "")),
        ("bnrank.nothing", (False, "")),
    ],
)
def test_a_name_is_found_under_any_path(name, expected):
    assert links.documented_name(name) == expected


def _site(folder, body):
    (folder / "index.html").write_text(f"<html><body><h1 id='top'>x</h1>{body}</body></html>")
    (folder / "other.html").write_text("<html><body><p id='here'>y</p></body></html>")
    return check.problems(folder)


def test_a_good_site_has_no_problems(tmp_path):
    assert (
        _site(tmp_path, '<a href="other.html#here">a</a><a href="#top">b</a><a href="https://example.org">c</a>') == []
    )


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="gone.html">a</a>', "index.html: no file gone.html"),
        ('<a href="other.html#gone">a</a>', "index.html: no anchor other.html#gone"),
        ('<a href="#gone">a</a>', "index.html: no anchor #gone"),
        ('<a href="../gone.html">a</a>', "index.html: leaves the site: ../gone.html"),
        ('<img src="gone.png">', "index.html: no file gone.png"),
        ('<script src="https://example.org/x.js"></script>', "index.html: loads https://example.org/x.js"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "index.html: loads //example.org/x.css"),
    ],
)
def test_what_is_wrong_with_a_site_is_named(tmp_path, body, problem):
    assert _site(tmp_path, body) == [problem]


def test_links_and_files_that_are_lost_are_named(tmp_path):
    assert len(check.missing(tmp_path)) == len(check.LINKS) + len(check.FILES)
    for name, link in check.LINKS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        before = (tmp_path / name).read_text() if (tmp_path / name).exists() else ""
        (tmp_path / name).write_text(f"{before}<a href='{link}'>x</a>")
    for name in check.FILES[1:]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert check.missing(tmp_path) == [f"no file {check.FILES[0]}"]


def test_an_empty_site_is_wrong(tmp_path):
    assert check.problems(tmp_path) == [f"{tmp_path}: no pages"]


def test_notebooks_have_the_code_of_the_pages(tmp_path):
    (tmp_path / "tutorials").mkdir()
    head = "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n---\n"
    text = "Text, [a page](../plain.md#here), [a site](https://example.org)."
    page = f"{head}\n# Title\n\n{text}\n\n```{{code-cell}} python\nx = 1\nx\n```\n"
    (tmp_path / "tutorials" / "one.md").write_text(page)
    (tmp_path / "plain.md").write_text("# Plain\n")
    (written,) = notebooks.write(tmp_path)
    cells = json.loads(written.read_text())["cells"]
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code", "markdown", "code"]
    assert ["".join(cell["source"]) for cell in cells[1::2]] == ["%matplotlib inline", "x = 1\nx"]
    assert "".join(cells[2]["source"]) == "Text, a page, [a site](https://example.org)."
    assert cells[3]["outputs"] == []
    first = written.read_bytes()
    assert notebooks.write(tmp_path)[0].read_bytes() == first
    (tmp_path / "one.md").write_text(page)
    with pytest.raises(ValueError, match="a second notebook of the name 'one'"):
        notebooks.write(tmp_path)


def test_the_four_doors_are_notebooks():
    for name in ("scientist", "practitioner", "theorist", "first_training"):
        assert notebooks.is_notebook((ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8"))


def test_the_picture_of_an_example_is_the_figure_that_it_draws():
    example = """
    >>> from matplotlib.figure import Figure
    >>> empty, full = Figure(), Figure()
    >>> full.subplots().plot([1, 2])
    [...]
    """
    names = {}
    assert pictures.drawn(example, names) == [names["full"]]


def test_names_that_draw_have_an_example():
    named = {name: value for page in api.pages() for name, value in page.names.items()}
    drawing = [value for name, value in named.items() if pictures.DRAWS.search(name) and callable(value)]
    drawing += [value.plot for value in named.values() if inspect.isclass(value) and hasattr(value, "plot")]
    assert len(drawing) > 12
    for value in drawing:
        assert ">>>" in inspect.getdoc(value), value


def test_stored_figures_become_pages_of_the_gallery(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    first, second, *_ = FIGURES
    picture = Figure()
    picture.subplots().plot([1, 2])
    claims = (Claim("a | b", True, 0.123456, "< 1"), Claim("c", False, "3", "2"))
    outcome = Outcome(
        first.label, claims, (), {"one": picture}, seconds=1.25, captions={"one": "A line"}, version="0.0.9"
    )
    outcome.save(tmp_path / "quick" / first.name)
    Outcome(second.label, claims, error="it broke").save(tmp_path / "quick" / second.name)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (written,) = store(tmp_path / "quick", tmp_path / "docs" / "results")
    kept = json.loads(written.read_text())
    assert [claim["measured"] for claim in kept["claims"]] == ["0.1235", "3"]
    assert kept["command"] == f"bnrank reproduce {first.id}"
    assert "bnrank 0.0.9, torch" in kept["machine"]
    monkeypatch.setattr(gallery, "HERE", tmp_path / "docs")
    (tmp_path / "docs" / "figures.md").write_text(f"## {first.id}. Some figure\n## {second.id}. Other\n")
    (tmp_path / "docs" / "gallery" / "pictures").mkdir(parents=True)
    page = gallery._page(first, gallery._stored(first), tmp_path / "docs" / "gallery")
    assert "Reproduced: 1 of 2 claims" in page
    assert "| a \\| b | 0.1235 | \\< 1 | reproduced |" in page
    assert "**not reproduced**" in page
    assert (tmp_path / "docs" / "gallery" / "pictures" / f"{first.id}-one.png").exists()
    assert "Not run with this version" in gallery._page(second, gallery._stored(second), tmp_path / "docs" / "gallery")


def test_stored_figures_are_of_known_figures_and_show_their_pictures():
    stored = sorted((ROOT / "docs" / "results" / "figures").glob("*.json"))
    assert len(stored) >= 8
    for path in stored:
        kept = json.loads(path.read_text(encoding="utf-8"))
        assert kept["claims"], path
        assert kept["figure"] in {figure.label for figure in FIGURES}
        for picture in kept["pictures"]:
            assert (path.parent / picture).stat().st_size < 300_000


def test_the_index_of_the_gallery_counts_what_is_stored(tmp_path):
    gallery.write(tmp_path)
    index = (tmp_path / "index.md").read_text(encoding="utf-8")
    for figure in FIGURES:
        stored = gallery._stored(figure)
        if stored is None:
            assert f"| [{figure.id}]({figure.id}.md) | {gallery._plain(figure.title)} | – | – | – |" in index
        else:
            good = sum(bool(claim["passed"]) for claim in stored["claims"])
            assert f"| [{figure.id}]({figure.id}.md) | {gallery._plain(figure.title)} | {good} of" in index
            assert f"{good} of {len(stored['claims'])} claims reproduced" in index
        assert (tmp_path / f"{figure.id}.md").exists()
    assert (tmp_path / "pictures" / "compression.png").exists()


def test_outputs_are_stored_for_one_state_of_the_library(tmp_path, monkeypatch):
    before = sources.digest()
    assert sources.digest.__wrapped__() == before
    (tmp_path / "__init__.py").write_text("x = 1")
    monkeypatch.setattr(bnrank, "__file__", str(tmp_path / "__init__.py"))
    assert sources.digest.__wrapped__() != before


def test_names_of_the_theory_have_an_entry_in_the_api():
    named = {name for page in (ROOT / "docs" / "theory").glob("*.md") for name in NAME.findall(page.read_text("utf-8"))}
    assert len(named) > 100
    for name in named:
        exists, documented = links.documented_name(name)
        assert exists, name
        assert documented, name


def test_results_name_the_functions_that_return_them():
    pages = api.pages()
    returned = api._returned("bnrank.cost.Planarity", bnrank.cost.Planarity, pages)
    assert returned.strip() == "Returned by :any:`bnrank.cost.planarity`, with an example."
    assert api._returned("bnrank.train", bnrank.train, pages) == ""
    assert api._returned("bnrank.training.Record", bnrank.training.Record, pages) == ""  # compare has another Record
