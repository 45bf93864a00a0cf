"""docs/theory/reading.md is true: its cells run as written, in order, show pictures, and find what the text says."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

PAGE = Path(__file__).parents[1] / "docs" / "theory" / "reading.md"
TEXT = PAGE.read_text(encoding="utf-8")
CELLS = re.findall(r"```\{code-cell\} python\n(.*?)```", TEXT, re.DOTALL)


def run(cell, names):
    """Run a cell as a notebook does, without magics, and return the value of its last expression."""
    body = ast.parse("\n".join("" if line.startswith("%") else line for line in cell.split("\n"))).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), PAGE.name, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), PAGE.name, "eval"), names)


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("reading"))
        names["shown"] = [run(cell, names) for cell in CELLS]
        names["files"] = list(Path().iterdir())
    return names


def test_the_minutes_of_the_stations_are_an_hour():
    stations = dict(re.findall(r"^## (\d\..*)\n\n\*(\d+) minutes\.\*", TEXT, re.MULTILINE))
    table = dict(re.findall(r"^\| \[(\d\..*?)\]\(\S+\) \| (\d+) \|$", TEXT, re.MULTILINE))
    assert len(stations) == len(CELLS) - 1
    assert table == stations
    assert sum(map(int, stations.values())) == 60


@pytest.mark.slow
def test_every_station_shows_a_picture(after):
    setup, *pictures = after["shown"]
    assert setup is None
    assert all(isinstance(picture, Figure) for picture in pictures)
    assert not after["files"]


@pytest.mark.slow
def test_the_ranks_of_the_cross_differ(after):
    cross, bnrank = after["cross"], after["bnrank"]
    assert [region.rank for region in after["regions"]] == [1] * 8
    x = after["torch"].rand(50, 2, dtype=after["torch"].float64) * 2 - 1
    bracket = bnrank.rank(cross, x, box=[(-1, 1), (-1, 1)])
    assert (bracket.lower, bracket.upper) == (1, 2)


@pytest.mark.slow
def test_the_bounds_of_all_regions_are_below_the_norm(after):
    assert {piece.rank for piece in after["pieces"]} == {1, 2}
    assert after["bounds"].max() <= after["cost"].upper
    assert after["bounds"].max() == pytest.approx(float(after["cost"].lower), rel=1e-6)
    ranks = np.array([piece.rank for piece in after["pieces"]])
    assert after["bounds"][ranks == 2].max() > after["bounds"][ranks == 1].max()


@pytest.mark.slow
def test_the_corner_costs_one_unit_per_layer(after):
    low, high = after["law"].R0_interval
    assert low < 1.1  # the search can miss the least norms, so that the interval can be beside 1
    assert high > 0.9
    assert high - low < 0.3
    assert after["law"].R1 > 1
    assert max(solution.error for solution in after["found"]) < 1e-9


@pytest.mark.slow
def test_the_least_rank_falls_with_the_depth(after):
    assert after["tradeoff"].exact
    assert sorted(set(after["best"])) == [0, 1, 2, 3]
    assert (np.diff(after["best"]) <= 0).all()


@pytest.mark.slow
def test_the_network_finds_two_variables(after):
    values = after["profile"].weight_singular_values
    middle = values.sel(layer=after["net"].depth // 2)
    assert float(middle[1]) > 0.8
    assert float(middle[2]) < 0.1
    assert after["bnrank"].bottleneck(after["net"], after["task"].x).rank == 2


@pytest.mark.slow
def test_the_verdicts_are_what_the_text_says(after):
    verdicts = after["verdicts"]
    assert verdicts.ok
    assert all(verdicts[key].right < 2 * verdicts[key].left for key in ("T4", "T7", "T21"))
    assert verdicts["T22"].right > 100 * verdicts["T22"].left
    assert verdicts["T14"].status == "not applicable"
