"""MNIST and digits: where files are looked for, what is refused, what the numbers are."""

import gzip
import hashlib
import os
import re
import struct
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pooch
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bnrank.tasks import MissingDataError, digits, handwritten_digits, images, mnist, parse_idx

NAMES = list(images.REGISTRY)
RETRIEVE = pooch.retrieve


def idx(array):
    array = np.asarray(array, np.uint8)
    return struct.pack(f">i{array.ndim}i", 2048 + array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A small MNIST of 2 x 3 pixels, no network, an empty cache; returns a function that puts files into a folder."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, (30, 2, 3)), np.arange(30) % 10, rng.integers(0, 256, (7, 2, 3)), np.arange(7)]
    contents = {name: gzip.compress(idx(array), mtime=0) for name, array in zip(NAMES, arrays, strict=True)}
    registry = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    monkeypatch.setattr(images, "REGISTRY", registry)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)
    monkeypatch.delenv("BNRANK_DATA", raising=False)

    def refuse(*args, **kwargs):
        raise AssertionError(f"download attempted: {args}")

    monkeypatch.setattr(pooch, "retrieve", refuse)

    def put(folder, names=NAMES):
        folder = tmp_path / folder
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).write_bytes(contents[name])
        return folder

    put.arrays, put.contents = arrays, contents
    return put


# ---- the IDX format


@hypothesis_settings(max_examples=25, deadline=None, derandomize=True)
@given(
    shape=st.one_of(st.tuples(st.integers(0, 5)), st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 4)))
)
def test_idx_round_trip(shape, tmp_path_factory):
    array = np.arange(np.prod(shape)).reshape(shape) % 256
    path = tmp_path_factory.mktemp("idx") / "file.gz"
    path.write_bytes(gzip.compress(idx(array)))
    assert np.array_equal(parse_idx(path, 2048 + len(shape)), array)


def test_idx_refuses_what_is_damaged(tmp_path):
    path = tmp_path / "file.gz"
    good = idx(np.arange(12).reshape(2, 2, 3))
    packed = gzip.compress(good)
    for data, message in [
        (gzip.compress(good[:-1]), "got 11 bytes after the header, expected 12 for shape (2, 2, 3)"),
        (gzip.compress(good + b"\0"), "got 13 bytes after the header, expected 12"),
        (gzip.compress(good[:9]), "got 9 bytes, expected at least the 16 bytes of the header"),
        (gzip.compress(b""), "got magic number 0, expected 2051"),
        (gzip.compress(idx(np.arange(3))), "got magic number 2049, expected 2051"),
        (packed[:-9], "damaged or truncated"),
        (packed[:12] + b"\xff" + packed[13:], "damaged or truncated"),
        (good, "damaged or truncated"),
    ]:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            parse_idx(path, 2051)
        assert "file.gz" in str(caught.value)


# ---- where files come from


def test_lookup_order(place, monkeypatch, tmp_path):
    place("cache/bnrank/mnist")
    found = images._find_files(download=False)
    assert {path.parent for path in found.values()} == {tmp_path / "cache/bnrank/mnist"}
    place("cache/bnrank")
    assert images._find_files(download=False)[NAMES[0]].parent == tmp_path / "cache/bnrank"
    monkeypatch.setenv("BNRANK_DATA", str(place("mine/mnist").parent))
    assert images._find_files(download=False)[NAMES[0]].parent == tmp_path / "mine/mnist"
    place("mine", NAMES[:1])
    found = images._find_files(download=False)
    assert found[NAMES[0]].parent == tmp_path / "mine"
    assert found[NAMES[1]].parent == tmp_path / "mine/mnist"


def test_downloads_what_is_missing_from_the_first_mirror_that_works(place, monkeypatch, tmp_path):
    place("cache/bnrank/mnist", NAMES[:2])
    asked = []

    def retrieve(url, known_hash, fname, path, downloader):
        asked.append(url)
        if url.startswith(images.MIRRORS[0]):
            raise ConnectionError("no route")
        assert known_hash == f"sha256:{images.REGISTRY[fname]}"
        (Path(path) / fname).write_bytes(place.contents[fname])

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert mnist().n == 30
    assert asked == [mirror + name for name in NAMES[2:] for mirror in images.MIRRORS]


def test_download_over_http(place, monkeypatch, tmp_path):
    """End to end on this machine: a mirror that is down, one with damaged files, one that is good."""
    for folder in ("served/bad", "served/good"):
        place(folder)
    (tmp_path / "served/bad" / NAMES[0]).write_bytes(b"something else")
    monkeypatch.setattr(pooch, "retrieve", RETRIEVE)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=tmp_path / "served")

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(images, "MIRRORS", (f"{address}/absent/", f"{address}/bad/"))
        with pytest.raises(MissingDataError, match=r"absent/.*404.*bad/.*does not match"):
            mnist()
        assert not list((tmp_path / "cache").rglob("*.gz"))
        monkeypatch.setattr(images, "MIRRORS", (*images.MIRRORS, f"{address}/good/"))
        assert mnist().n == 30
        server.shutdown()
    assert {path.name for path in (tmp_path / "cache/bnrank/mnist").iterdir()} == set(NAMES)
    assert mnist(download=False).n == 30


def test_no_copy_and_no_network(place, monkeypatch, tmp_path):
    def fail(url, *args, **kwargs):
        raise ConnectionError("no route")

    place("cache/bnrank/mnist", NAMES[:1])
    monkeypatch.setattr(pooch, "retrieve", fail)
    monkeypatch.setenv("BNRANK_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(MissingDataError) as caught:
        mnist()
    text = str(caught.value)
    first, *lines = text.splitlines()
    assert (
        f"fetch 3 files and put them into {tmp_path / 'cache/bnrank/mnist'}, or into the folder that BNRANK_DATA"
        in first
    )
    assert lines[:3] == [images.MIRRORS[0] + name for name in NAMES[1:]]
    for part in ["no route", *images.MIRRORS, f"BNRANK_DATA={tmp_path / 'nowhere'}"]:
        assert part in lines[3]
    with pytest.raises(MissingDataError, match="download=False"):
        mnist(download=False)
    assert issubclass(MissingDataError, ValueError)


def test_why_a_download_failed_is_said_in_short(place, monkeypatch):
    dump = "HTTPSConnectionPool(host='a', port=443): Max retries exceeded with url: /b (Caused by NewConnectionError())"

    def fail(url, *args, **kwargs):
        raise ConnectionError(dump)

    monkeypatch.setattr(pooch, "retrieve", fail)
    with pytest.raises(MissingDataError, match=r"idx3-ubyte\.gz: ConnectionError; .*: ConnectionError$") as caught:
        mnist()
    assert "Pool" not in str(caught.value)


@pytest.mark.parametrize("folder", ["mine", "cache/bnrank/mnist"])
def test_a_wrong_hash_is_refused(place, monkeypatch, tmp_path, folder):
    """Even where a good copy lies further down the line, and by handwritten_digits as well."""
    place("cache/bnrank")
    monkeypatch.setenv("BNRANK_DATA", str(place("mine")))
    if folder != "mine":
        monkeypatch.delenv("BNRANK_DATA")
        (tmp_path / "cache/bnrank" / NAMES[2]).unlink()
        place(folder)
    damaged = tmp_path / folder / NAMES[2]
    damaged.write_bytes(place.contents[NAMES[2]] + b" ")
    found = hashlib.sha256(damaged.read_bytes()).hexdigest()
    for load in (mnist, handwritten_digits):
        with pytest.raises(ValueError, match=re.escape(f"{damaged}: got SHA256 {found}, expected")) as caught:
            load()
        assert images.REGISTRY[NAMES[2]] in str(caught.value)
        assert not isinstance(caught.value, MissingDataError)
    assert damaged.exists()


def test_a_hash_that_matches_does_not_excuse_a_file_of_another_kind(place, monkeypatch):
    folder = place("mine")
    swapped = folder / NAMES[1]
    swapped.write_bytes(place.contents[NAMES[0]])
    monkeypatch.setitem(images.REGISTRY, NAMES[1], images.REGISTRY[NAMES[0]])
    monkeypatch.setenv("BNRANK_DATA", str(folder))
    with pytest.raises(ValueError, match="got magic number 2051, expected 2049"):
        mnist()
    short = gzip.compress(idx(np.arange(4)))
    swapped.write_bytes(short)
    monkeypatch.setitem(images.REGISTRY, NAMES[1], hashlib.sha256(short).hexdigest())
    with pytest.raises(ValueError, match="train: got 30 images and 4 labels"):
        mnist()


# ---- what is made of them


def test_standardized_by_the_whole_training_set(place, monkeypatch):
    monkeypatch.setenv("BNRANK_DATA", str(place("mine")))
    pixels, pixels_test = (place.arrays[i].reshape(-1, 6) / 255 for i in (0, 2))
    whole, part, raw = mnist(), mnist(n=4, n_test=3), mnist(standardize=False)
    assert whole.x.numpy() == pytest.approx((pixels - pixels.mean()) / pixels.std(), abs=1e-6)
    assert whole.x_test.numpy() == pytest.approx((pixels_test - pixels.mean()) / pixels.std(), abs=1e-6)
    assert raw.x.numpy() == pytest.approx(pixels, abs=1e-7)
    assert whole.y.tolist() == [i % 10 for i in range(30)]
    rows = {tuple(row) for row in whole.x.tolist()}
    assert all(tuple(row) in rows for row in part.x.tolist())
    assert (part.x.shape, part.x_test.shape) == ((4, 6), (3, 6))
    rows_test = whole.x_test.tolist()
    assert [rows_test.index(row) for row in part.x_test.tolist()] == part.y_test.tolist()
    assert (whole.x.dtype, whole.y.dtype, whole.loss) == (torch.float32, torch.int64, "cross_entropy")
    assert (whole.classes, whole.name) == (10, "mnist")
    assert mnist(n_test=0).x_test is None


def test_subsets_are_seeded_nested_and_keep_their_labels(place, monkeypatch):
    monkeypatch.setenv("BNRANK_DATA", str(place("mine")))
    torch_state = torch.get_rng_state()
    whole, a, b, c = mnist(), mnist(n=12, seed=1), mnist(n=20, seed=1), mnist(n=12, seed=2)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert torch.equal(a.x, b.x[:12])
    assert torch.equal(a.x, mnist(**a.settings).x)
    assert not torch.equal(a.x, c.x)
    label_of = {tuple(row): label for row, label in zip(whole.x.tolist(), whole.y.tolist(), strict=True)}
    assert [label_of[tuple(row)] for row in a.x.tolist()] == a.y.tolist()
    with pytest.raises(ValueError, match="n: got 31, expected at most the 30 there are"):
        mnist(n=31)
    with pytest.raises(ValueError, match="n: got 0"):
        mnist(n=0)
    with pytest.raises(ValueError, match="n_test: got -1"):
        mnist(n_test=-1)


def test_digits():
    from sklearn.datasets import load_digits

    task, raw, other = digits(seed=1), digits(seed=1, standardize=False), digits(seed=2)
    assert (task.x.shape, task.x_test.shape, task.name, task.classes) == ((1500, 64), (297, 64), "digits", 10)
    assert task.x.double().mean().item() == pytest.approx(0, abs=1e-6)
    assert task.x.double().std(correction=0).item() == pytest.approx(1, abs=1e-6)
    assert (raw.x.min(), raw.x.max()) == (0, 1)
    bundled = load_digits()
    together = np.vstack([raw.x, raw.x_test]) * 16
    assert sorted(map(tuple, together)) == sorted(map(tuple, bundled.data))
    labels = {tuple(row): label for row, label in zip(bundled.data, bundled.target, strict=True)}
    assert [labels[tuple(row)] for row in together] == [*raw.y.tolist(), *raw.y_test.tolist()]
    assert not torch.equal(task.x, other.x)
    assert torch.equal(digits(n=10, seed=1).x, digits(n=20, seed=1).x[:10])
    with pytest.raises(ValueError, match="n: got 1501, expected at most the 1500 there are"):
        digits(n=1501)


def test_handwritten_digits_takes_what_is_there(place, monkeypatch):
    fallback = handwritten_digits(n=5000, n_test=20, seed=3)
    assert (fallback.name, fallback.n, fallback.x_test.shape[0]) == ("digits", 1500, 20)
    assert torch.equal(fallback.x, digits(n=1500, seed=3).x)
    assert fallback.settings["n"] == 1500
    monkeypatch.setenv("BNRANK_DATA", str(place("mine")))
    assert handwritten_digits(n=5, seed=3).name == "mnist"
    assert torch.equal(handwritten_digits(n=5, seed=3).x, mnist(n=5, seed=3).x)


# ---- the real thing


@pytest.fixture
def real_mnist(monkeypatch):
    repository = Path(__file__).parents[2]
    named = os.environ.get("BNRANK_DATA")
    folders = [Path(named)] if named else [repository.parent / "shared" / "data", repository / "shared" / "data"]
    for folder in folders:
        if any((place / NAMES[0]).is_file() for place in (folder, folder / "mnist")):
            monkeypatch.setenv("BNRANK_DATA", str(folder))
            return
    pytest.skip(f"no copy of MNIST in {' or '.join(map(str, folders))}; set BNRANK_DATA to a folder that has one")


@pytest.mark.usefixtures("real_mnist")
def test_real_mnist():
    task = mnist(download=False)
    assert (task.x.shape, task.x_test.shape) == ((60_000, 784), (10_000, 784))
    assert torch.bincount(task.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert task.x.mean(dtype=torch.float64).item() == pytest.approx(0, abs=1e-6)
    # black is (0 - mean) / std and white (1 - mean) / std
    black, white = task.x.min().item(), task.x.max().item()
    assert 1 / (white - black) == pytest.approx(0.3081, abs=5e-5)
    assert -black / (white - black) == pytest.approx(0.1307, abs=5e-5)
