"""State variables of small films whose state dimension is known."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import bnrank
from bnrank.discovery import FilmSummary, StateVariables
from bnrank.training import Save
from bnrank.training.objectives import ModuleObjective

LINE = np.linspace(-1, 1, 10)
QUICK = {"steps": 250, "n_networks": 2, "width": 32, "n_latent": 6, "progress": False}


def _bumps(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return pictures (..., 10, 10) of a bright spot at (x, y)."""
    return (
        np.exp(-6 * (LINE - x[..., None]) ** 2)[..., None] * np.exp(-6 * (LINE - y[..., None]) ** 2)[..., None, :]
    ).astype(np.float32)


def _turning(n: int, frames: int = 6, seed: int = 0, speeds: tuple[float, float] = (0.6, 0.6)) -> np.ndarray:
    generator = np.random.default_rng(seed)
    start, speed = generator.uniform(0, 2 * np.pi, (n, 1)), generator.uniform(*speeds, (n, 1))
    angle = start + speed * np.arange(frames)
    return _bumps(0.5 * np.cos(angle), 0.5 * np.sin(angle))


@pytest.fixture(scope="module")
def films() -> np.ndarray:
    return _turning(80)


@pytest.fixture(scope="module")
def found(films: np.ndarray) -> StateVariables:
    return StateVariables(**QUICK).fit(films)


def test_a_turning_spot_has_one_state_variable_and_needs_two_coordinates(
    found: StateVariables, films: np.ndarray
) -> None:
    assert (found.state_dimension_, found.coordinates_needed_) == (1, 2)
    assert not found.undetermined_
    assert found.state_dimension_interval_[0] <= 1 <= found.state_dimension_interval_[1]
    assert found.coordinates_needed_interval_ == (2, 2)  # one leaves a quarter unexplained in both networks
    assert "halves of the films do not confirm it (4 of 4 are undetermined)" in found.reason_
    assert found.unexplained_ < 0.02
    assert found.score(_turning(20, seed=9)) > 0.95
    z = found.transform(films).astype(float)
    assert np.allclose(z.mean(0), 0, atol=0.3)  # of pairs, also those at the end, of which no window is seen
    assert np.linalg.norm(z, axis=1).min() > 0.3  # a closed curve around the origin


def test_a_spot_that_turns_at_any_speed_has_two_also_under_noise() -> None:
    films = _turning(250, speeds=(0.2, 1.2))
    films = films + 0.02 * np.random.default_rng(1).normal(size=films.shape).astype(np.float32)
    found = StateVariables(**QUICK | {"steps": 400, "n_coordinates": 2}).fit(films)
    assert found.state_dimension_ == 2
    assert not found.undetermined_


def test_rows_are_pairs_of_frames_film_after_film(found: StateVariables, films: np.ndarray) -> None:
    every = found.transform(films[:4])
    assert every.shape == (4 * 5, 2)
    alone = np.concatenate([found.transform(film) for film in films[:4]])
    assert np.allclose(every, alone, atol=1e-5)
    assert np.allclose(found.transform(films[2, 1:3]), every[11:12], atol=1e-5)
    assert np.allclose(found.transform([films[0], films[1, :3]]), np.concatenate([every[:5], every[5:7]]), atol=1e-5)


def test_the_next_frames_are_predicted(found: StateVariables) -> None:
    new = _turning(10, seed=7)
    predicted = found.predict(new[:, :4])
    assert predicted.shape == (30, 2, 10, 10)
    true = np.stack([new[:, i : i + 2] for i in (2, 3)], axis=1).reshape(20, 2, 10, 10)
    first_two = predicted.reshape(10, 3, 2, 10, 10)[:, :2].reshape(20, 2, 10, 10)
    assert np.square(first_two - true).mean() < 0.05 * true.var()


def test_pixels_through_convolutions_find_the_same(films: np.ndarray) -> None:
    found = StateVariables(**QUICK | {"encoder": "conv", "n_networks": 1, "n_coordinates": 2}).fit(films)
    assert found.state_dimension_ == 1
    assert found.unexplained_ < 0.1


def test_integers_colors_and_tensors_are_films(found: StateVariables, films: np.ndarray) -> None:
    whole = (255 * films[:30]).astype(np.uint8)
    colors = np.stack([films, 1 - films, 0.5 * films], axis=-1)
    quick = QUICK | {"steps": 30, "n_networks": 1, "n_coordinates": 1}
    model = StateVariables(**quick).fit(colors[:30])
    assert model.frame_shape_ == (10, 10, 3)
    assert model.predict(colors[:2]).shape == (10, 2, 10, 10, 3)
    assert StateVariables(**quick).fit(whole).frame_shape_ == (10, 10, 1)
    assert np.array_equal(found.transform(torch.from_numpy(films[:3])), found.transform(films[:3]))


def test_a_file_gives_the_same_coordinates(found: StateVariables, films: np.ndarray, tmp_path) -> None:
    path = bnrank.save(found, tmp_path / "found.safetensors")
    again = bnrank.load(path)
    assert isinstance(again, StateVariables)
    assert isinstance(again.summary(), FilmSummary)
    assert str(again.summary()) == str(found.summary())
    assert np.array_equal(again.transform(films), found.transform(films))
    assert np.array_equal(StateVariables.load(path).predict(films[:2]), found.predict(films[:2]))
    assert again.get_params() == clone(found).get_params()
    with pytest.raises(ValueError, match="path: "):
        bnrank.discovery.BottleneckRegressor.load(path)


def test_training_resumes_in_its_folder(films: np.ndarray, tmp_path, monkeypatch) -> None:
    quick = QUICK | {"steps": 40, "n_networks": 1, "n_coordinates": 1}
    first = StateVariables(**quick, out=tmp_path / "run").fit(films)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"networks", "coordinates-1"}
    with monkeypatch.context() as patch:
        patch.setattr(ModuleObjective, "evaluate", None)  # a complete run is not trained again
        second = StateVariables(**quick, out=tmp_path / "run").fit(films)
        with pytest.raises(TypeError):
            StateVariables(**quick, out=tmp_path / "other").fit(films)
    assert np.array_equal(first.transform(films), second.transform(films))
    with pytest.raises(ValueError, match="steps"):
        StateVariables(**quick | {"steps": 41}, out=tmp_path / "run").fit(films)
    StateVariables(**quick | {"steps": 41}, out=Save(tmp_path / "run", resume=False)).fit(films)


def test_a_page_shows_the_state_dimension(found: StateVariables, tmp_path) -> None:
    text = bnrank.report(found, tmp_path / "found.html").read_text()
    assert "The films show 1 state variable" in text
    assert "2 (interval 2 to 2)" in text
    assert "Local variances in the bottleneck" in text
    nothing = StateVariables(**QUICK).fit(np.ones((60, 8, 4, 4)))
    assert "No state variables were established" in bnrank.report(nothing, tmp_path / "none.html").read_text()


def test_the_summary_is_a_table_and_a_text(found: StateVariables) -> None:
    row = found.summary().to_frame()
    assert row["state_dimension"].item() == 1
    assert row[["coordinates_needed", "coordinates_low", "coordinates_high"]].to_numpy().tolist() == [[2, 2, 2]]
    assert "coordinates needed: 2 (interval 2 to 2)" in str(found.summary())
    assert str(found.summary()).startswith(
        "StateVariables: 80 film(s), 480 frames of 10 x 10 pixels\nstate dimension: 1 "
    )


NOISE = np.random.default_rng(0).normal(size=(300, 8, 8))


@pytest.mark.parametrize(
    ("films", "reason"),
    [
        (NOISE, "no network predicts"),
        (NOISE.reshape(60, 5, 8, 8), "no network predicts"),
        (np.tile(NOISE[:1], (200, 1, 1)), "all frames are equal"),
        (np.full((40, 5, 8, 8), 7, dtype=np.uint8), "all frames are equal"),
        (NOISE[:1] + 0.02 * NOISE, "no network predicts"),
    ],
    ids=["noise", "films of noise", "a picture", "constant pixels", "a picture with noise"],
)
def test_films_without_motion_are_undetermined(films: np.ndarray, reason: str) -> None:
    found = StateVariables(**QUICK | {"steps": 100}).fit(films)
    assert found.undetermined_
    assert found.state_dimension_ == 0
    assert reason in found.reason_
    assert found.transform(films[:5]).shape[1] == 0
    predicted = found.predict(films[:5])
    mean = found.components_.mean.reshape(predicted.shape[-2:])
    assert np.allclose(predicted, mean)
    assert found.score(films) == 0.0


def test_one_film_is_cut_into_blocks_and_slow_motion_into_wider_windows() -> None:
    angle = 0.02 * np.arange(1200)
    found = StateVariables(**QUICK).fit(_bumps(0.5 * np.cos(angle), 0.5 * np.sin(angle)))
    assert found.state_dimension_ == 1
    assert found.stride_ > 5
    assert any("blocks of consecutive frames" in note for note in found.summary().notes)
    assert any("frames apart" in note for note in found.summary().notes)


def test_networks_that_predict_too_little_leave_the_dimension_undetermined() -> None:
    t = np.arange(300)
    films = _bumps(0.5 * np.cos(0.31 * t), 0.5 * np.cos(0.3464 * t))
    found = StateVariables(**QUICK | {"steps": 120, "n_networks": 1, "n_coordinates": 1}).fit(films)
    assert found.undetermined_
    assert "of the next frames is unexplained" in found.reason_


@pytest.mark.parametrize(
    ("frames", "error", "words"),
    [
        ("abc", TypeError, "frames: got 'abc'"),
        (np.ones((1, 8, 8)), ValueError, "frames: got a film of 1 frame"),
        (np.ones((10, 8, 8)), ValueError, "7 windows of 4 frames"),
        (np.ones(5), ValueError, r"frames: got shape \(5,\)"),
        (np.full((50, 4, 4), np.nan), ValueError, "NaN or infinite entries in film 0"),
        (np.full((50, 4, 4), "a"), TypeError, "dtype"),
        ([], ValueError, "frames: got no films"),
        ([np.ones((9, 4, 4)), np.ones((9, 4, 5))], ValueError, "shapes"),
        ([np.ones((9, 4, 4)), "film"], TypeError, r"frames\[1\]"),
    ],
)
def test_what_is_no_film_is_refused(frames, error, words) -> None:
    with pytest.raises(error, match=words):
        StateVariables().fit(frames)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"encoder": "patch"}, "encoder"),
        ({"stride": 0}, "stride"),
        ({"stride": 3}, "stride: got 3, expected at most 1"),
        ({"n_coordinates": "many"}, "n_coordinates"),
        ({"n_networks": 0}, "n_networks"),
        ({"ridge": -1.0}, "ridge"),
        ({"random_state": -1}, "random_state"),
        ({"progress": "loud"}, "progress"),
    ],
)
def test_parameters_out_of_range_are_refused(films: np.ndarray, arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StateVariables(**arguments).fit(films[:, :6])


def test_films_of_other_pixels_and_unfitted_estimators_are_refused(found: StateVariables) -> None:
    with pytest.raises(ValueError, match=r"expected \(10, 10, 1\), as in the fit"):
        found.transform(np.ones((5, 9, 9)))
    with pytest.raises(ValueError, match="expected at least 2"):
        found.transform(np.ones((1, 10, 10)))
    with pytest.raises(NotFittedError):
        StateVariables().transform(np.ones((5, 9, 9)))
