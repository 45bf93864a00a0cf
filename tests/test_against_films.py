"""The subject "films" of ``benchmarks.against``: its cells, its tables, and one small cell."""

import pytest
from benchmarks.against import films
from benchmarks.against.films_systems import SYSTEMS


def test_every_system_is_drawn_with_and_without_noise_from_seeds_that_chose_nothing() -> None:
    cells = films.cells()
    assert len(cells) == 20 * 2 * len(SYSTEMS)
    assert {cell["seed"] for cell in cells} == set(range(2000, 2020))
    assert [cell["system"] for cell in cells[:10]] == list(SYSTEMS)


def _result(count: int, seed: int, method: str = films.BNRANK, **more: object) -> dict:
    cell = {"seed": seed, "tuned": False, "system": "pendulum", "noise": 0.0, "films": 500, "method": method}
    own = {"low": 2, "high": 3, "undetermined": count == 3, "coordinates": 2, "unexplained": 0.01, "seconds": 5.0}
    return cell | own | {"count": count} | more


def test_tables_count_right_draws_and_doubts() -> None:
    text = films.tables([_result(2, 0), _result(3, 1), _result(1, 2), _result(9, 0, "PCA 99 percent")])
    rows = [line for line in text.splitlines() if line.startswith("| pendulum")]
    assert rows[0] == "| pendulum | 0% | 3 | 2 | 1 of 3 | 2.00 [1.00, 3.00] | failed | failed | 9.00 | 2.1 |"
    assert "| 1 of 2 | 1 of 3 | 1.00 [0.44, 1.00] | 2.0 [2.0, 2.0] |" in rows[1]


def test_a_small_cell_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"steps": 40, "n_networks": 1, "n_coordinates": 1, "width": 16}
    monkeypatch.setattr(films, "StateVariables", lambda **options: films_estimator(**options | quick))
    results = films.measure({"seed": 100, "tuned": False, "system": "pendulum", "noise": 0.0, "films": 60})
    own = results[0]
    assert [r["method"] for r in results] == list(films.METHODS)
    assert own["low"] <= own["count"] <= own["high"]
    assert own["seconds"] > 0


films_estimator = films.StateVariables
