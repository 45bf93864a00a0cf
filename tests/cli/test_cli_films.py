"""`bnrank discover` on films."""

import csv

import numpy as np
import pytest

import bnrank

QUICK = ("--steps", 60, "--members", 1, "--width", 32, "--quiet")


@pytest.fixture
def films():
    """Sixty films of a spot that turns."""
    line = np.linspace(-1, 1, 8)
    angle = np.random.default_rng(0).uniform(0, 6.28, (60, 1)) + 0.6 * np.arange(6)
    x, y = (np.exp(-8 * (line - 0.5 * f(angle)[..., None]) ** 2) for f in (np.cos, np.sin))
    return (x[..., :, None] * y[..., None, :]).astype(np.float32)


def test_discover_counts_the_state_variables_of_films(tmp_path, command, films):
    np.save(tmp_path / "spot.npy", films)
    done = command("discover", "spot.npy", *QUICK, "--save", "s.safetensors", "--coordinates", "z.csv", "--seed", 3)
    assert done.code == 0, done.error
    assert "StateVariables: 60 film(s), 360 frames of 8 x 8 pixels" in done.out
    found = bnrank.load(tmp_path / "s.safetensors")
    same = bnrank.discovery.StateVariables(steps=60, n_networks=1, width=32, random_state=3).fit(films)
    assert str(found.summary()) == str(same.summary())
    assert "State variables of the films" in (tmp_path / "discover.html").read_text()
    with (tmp_path / "z.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["pair", *(f"z{j + 1}" for j in range(same.coordinates_needed_))]
    assert np.allclose(np.array(rows[1:], dtype=float)[:, 1:], same.transform(films), atol=1e-5)


def test_an_archive_holds_films_of_different_lengths(tmp_path, command, films):
    np.savez(tmp_path / "two.npz", first=films[:30].reshape(-1, 8, 8), second=films[30:40].reshape(-1, 8, 8))
    done = command("discover", "two.npz", "--kind", "films", *QUICK)
    assert done.code == 0, done.error
    assert "StateVariables: 2 film(s), 240 frames" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.npy",), "DATA: got 'none.npy', which is no file"),
        (("bad.npy",), "DATA: got 'bad.npy', which is damaged"),
        (("objects.npy",), "DATA: got 'objects.npy', which is damaged or holds no plain numbers"),
        (("words.npy",), "expected real numbers"),
        (("flat.npy",), "DATA flat.npy: got shape (30, 4)"),
        (("table.csv", "--kind", "films"), "DATA: got 'table.csv', expected films"),
        (("spot.npy", "--targets", "q"), "--targets: got 'q' with films"),
        (("spot.npy", "--symmetries"), "--symmetries: got it with films"),
        (("spot.npy", "--depth", 4), "--depth: got 4 with films"),
        (("spot.npy", "--depth", 0), "--depth: got 0 with films"),
        (("spot.npy", "--jobs", 2), "--jobs: got 2 with films"),
        (("spot.npy", "--decimal", ","), "--decimal: got ',' with films"),
        (("spot.npy", "--steps", 0), "--steps: got 0"),
        (("spot.npy", "--members", 0), "--members: got 0"),
    ],
)
def test_errors_are_one_message(tmp_path, command, films, arguments, message):
    np.save(tmp_path / "spot.npy", films)
    np.save(tmp_path / "flat.npy", np.zeros((30, 4)))
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    done = command("discover", *arguments)
    assert done.code != 0
    assert message in done.error
    assert not (tmp_path / "discover.html").exists()
