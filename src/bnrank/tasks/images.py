"""Handwritten digits: MNIST, verified by its hashes, and the small data set included in scikit-learn."""

import gzip
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from bnrank._core import sources, validation
from bnrank.tasks.task import MissingDataError, Task, streams

REGISTRY = {  # SHA256 of the original distribution
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
IMAGES, LABELS = 2051, 2049  # magic numbers of IDX files
DIGITS_TRAIN, DIGITS_TEST = 1500, 297


def mnist(
    n: int | None = None, n_test: int | None = None, seed: int = 0, download: bool = True, *, standardize: bool = True
) -> Task:
    """Return MNIST: 60,000 training and 10,000 test images of 28 x 28 pixels (LeCun, Cortes, Burges; F3, F9, F10).

    Each file is read from the folder ``$BNRANK_DATA`` or its subfolder ``mnist``, else from the download cache
    ``pooch.os_cache("bnrank")`` or its subfolder, else downloaded into the cache. A file must have the SHA256 of the
    original distribution; otherwise it is refused, never replaced or skipped.

    Parameters
    ----------
    n, n_test : int, optional
        Number of training and test images, a random subset in random order; a larger ``n`` of the same seed begins
        with the smaller one. None takes all, in the order of the files; ``n_test=0`` gives no test data.
    seed : int
        Seed of the choice.
    download : bool
        Download missing files.
    standardize : bool
        Subtract the mean and divide by the standard deviation, two numbers taken over all pixels of all 60,000
        training images, independent of ``n``: 0.1307 and 0.3081 in units of [0, 1] (F9). False leaves pixels in [0, 1].

    Returns
    -------
    Task
        x (n, 784), float32, y (n,) digits, loss "cross_entropy", 10 classes, name "mnist".

    Raises
    ------
    MissingDataError
        If a file is missing and not downloaded; the message says which files to put where.
    TypeError, ValueError
        If an argument is out of range, a file's hash is wrong, or a file is not a complete IDX file.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.mnist(n=5000, seed=1)  # doctest: +SKIP
    >>> task.x.shape, task.x_test.shape  # doctest: +SKIP
    (torch.Size([5000, 784]), torch.Size([10000, 784]))
    """
    settings = dict(locals())
    paths = _find_files(bool(download))
    images, labels, images_test, labels_test = (
        parse_idx(paths[name], IMAGES if "images" in name else LABELS) for name in REGISTRY
    )
    for kind, a, b in (("train", images, labels), ("t10k", images_test, labels_test)):
        validation.expect(len(a) == len(b), kind, f"{len(a)} images and {len(b)} labels", "as many of both")
    pools = (images.reshape(len(images), -1), labels, images_test.reshape(len(images_test), -1), labels_test)
    return _task(pools, 255, "mnist", settings)


def digits(n: int | None = None, n_test: int | None = None, seed: int = 0, *, standardize: bool = True) -> Task:
    """Return the 1,797 handwritten digits of 8 x 8 pixels included in scikit-learn; requires no download.

    A split drawn from ``seed`` holds 1,500 for training and 297 for testing; the rest is as in :func:`mnist`.

    Parameters
    ----------
    n, n_test : int, optional
        Number of training and test images; None takes all, ``n_test=0`` gives no test data.
    seed : int
        Seed of the split and of the order.
    standardize : bool
        Subtract the mean and divide by the standard deviation over all pixels of the 1,500 training images. False
        leaves pixels in [0, 1].

    Returns
    -------
    Task
        x (n, 64), float32, y (n,) digits, loss "cross_entropy", 10 classes, name "digits".

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range; the message names it.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.digits(n=100)
    >>> task.name, task.x.shape, task.x_test.shape, task.d_out
    ('digits', torch.Size([100, 64]), torch.Size([297, 64]), 10)
    """
    settings = dict(locals())
    from sklearn.datasets import load_digits  # here, as it takes a second to import

    data = load_digits()
    images, labels = data.data.astype(np.uint8), data.target
    order = torch.randperm(len(images), generator=streams(seed, 3)[2]).numpy()
    train, test = order[:DIGITS_TRAIN], order[DIGITS_TRAIN:]
    pools = (images[train], labels[train], images[test], labels[test])
    return _task(pools, 16, "digits", settings)


def handwritten_digits(
    n: int | None = None, n_test: int | None = None, seed: int = 0, *, standardize: bool = True
) -> Task:
    """Return MNIST if a copy is on this machine, else scikit-learn's digits; ``Task.name`` is the data set used.

    Never downloads. If only the small set is available, ``n`` and ``n_test`` are limited to its 1,500 and 297
    images (``Task.settings`` has the numbers used). Arguments are those of :func:`mnist`.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or a copy of MNIST is corrupted.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.handwritten_digits(n=100, n_test=50)
    >>> task.name in ("mnist", "digits"), task.n, task.classes
    (True, 100, 10)
    """
    try:
        return mnist(n, n_test, seed, download=False, standardize=standardize)
    except MissingDataError:
        n = None if n is None else min(validation.integer(n, "n"), DIGITS_TRAIN)
        n_test = None if n_test is None else min(validation.integer(n_test, "n_test", 0), DIGITS_TEST)
        return digits(n, n_test, seed, standardize=standardize)


def two_digits(
    a: int = 0, b: int = 1, images: int | None = None, seed: int = 0, *, images_test: int | None = None
) -> Task:
    """Return the images of two digits as two classes, from :func:`handwritten_digits`; never downloads (F13).

    Parameters
    ----------
    a, b : int
        Two different digits, 0 to 9; ``a`` has the label -1, ``b`` the label +1.
    images, images_test : int, optional
        Number of training and test images of both together, a random subset in random order; a larger number of the
        same seed begins with the smaller one. None: all; ``images_test=0``: no test data.
    seed : int
        Seed of the choice.

    Returns
    -------
    Task
        x (images, 784), or (images, 64) from the small set, float32, standardized by the mean and the standard
        deviation over all pixels of all ten digits; y (images, 1), -1 or +1, loss "logistic"; the name says
        which, "mnist 0 and 1" or "digits 0 and 1".

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or a copy of MNIST is corrupted.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.two_digits(3, 8, images=100, images_test=0)
    >>> task.loss, task.y.shape, sorted(set(task.y.flatten().tolist()))
    ('logistic', torch.Size([100, 1]), [-1.0, 1.0])
    """
    a, b = validation.integer(a, "a", 0), validation.integer(b, "b", 0)
    validation.expect(a != b and max(a, b) <= 9, "a, b", f"{a} and {b}", "two different digits, 0 to 9")
    images_test = validation.optional(validation.integer, images_test, "images_test", 0)
    whole = handwritten_digits(seed=seed, n_test=0 if images_test == 0 else None)
    train, test = streams(seed, 2)

    data: dict[str, Any] = {}
    pools = ("", whole.x, whole.y, images, train), ("_test", whole.x_test, whole.y_test, images_test, test)
    for end, x, y, count, stream in pools:
        if x is not None and y is not None:
            of_two = ((y == a) | (y == b)).nonzero().flatten()
            chosen = of_two[torch.from_numpy(_choose(count, len(of_two), f"images{end}", 1, stream))]
            data |= {f"x{end}": x[chosen], f"y{end}": 2 * (y[chosen, None] == b).to(x.dtype) - 1}
    settings = {"a": a, "b": b, "images": len(data["x"]), "seed": seed}
    return Task(**data, loss="logistic", name=f"{whole.name} {a} and {b}", settings=settings)


def parse_idx(path: str | Path, magic: int) -> np.ndarray:
    """Return the array of a gzip-compressed IDX file: magic, big-endian 32-bit sizes, unsigned bytes.

    Parameters
    ----------
    path : str or Path
        The file.
    magic : int
        Expected magic number: 2051 for images, shape (N, rows, columns), 2049 for labels, shape (N,). Its last byte
        is the number of dimensions.

    Returns
    -------
    ndarray
        uint8.

    Raises
    ------
    ValueError
        If the file is not complete gzip data, has another magic number, or does not contain the number of bytes given
        by its sizes.

    Examples
    --------
    >>> import gzip, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "labels.gz"
    ...     _ = path.write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1])))
    ...     parse_idx(path, 2049)
    array([7, 2, 1], dtype=uint8)
    """
    path, magic = sources.as_path(path, "path"), validation.integer(magic, "magic", 0)
    try:
        with sources.opened(path, "path") as packed, gzip.open(packed) as file:
            limit = sources.may_expand_to(os.fstat(packed.fileno()).st_size)
            data = file.read(limit + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"path: {path}: got a damaged or truncated file ({error}), expected whole gzip data"
        ) from error
    validation.expect(
        len(data) <= limit, f"path: {path}", f"more than {limit:,} bytes", "at most as many, once expanded"
    )
    header = 4 + 4 * (magic % 256)
    found = int.from_bytes(data[:4], "big")
    validation.expect(found == magic, f"path: {path}", f"magic number {found}", f"{magic}")
    validation.expect(
        len(data) >= header, f"path: {path}", f"{len(data)} bytes", f"at least the {header} bytes of the header"
    )
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, header, 4))
    found, expected = len(data) - header, math.prod(shape)
    validation.expect(
        found == expected, f"path: {path}", f"{found} bytes after the header", f"{expected} for shape {shape}"
    )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _find_files(download: bool) -> dict[str, Path]:
    """Return the path of each file of the registry, its hash checked."""
    import pooch

    cache = Path(pooch.os_cache("bnrank"))
    user = os.environ.get("BNRANK_DATA")
    folders = [folder for base in ([Path(user)] if user else []) + [cache] for folder in (base, base / "mnist")]
    paths = {}
    for name, expected in REGISTRY.items():
        present = [folder / name for folder in folders if (folder / name).is_file()]
        if present:
            path, found = present[0], pooch.file_hash(present[0])
            validation.expect(found == expected, path, f"SHA256 {found}", f"{expected}; delete the file or replace it")
            paths[name] = path
    missing = [name for name in REGISTRY if name not in paths]
    failures: list[str] = []
    while download and missing and not failures:
        paths[missing[0]], failures = _download(missing[0], cache / "mnist")
        missing = missing if failures else missing[1:]
    if missing:
        where = f"BNRANK_DATA={user}" if user else "BNRANK_DATA is not set"
        tried = f"download failed: {'; '.join(failures)}" if download else "download=False"
        wanted = "\n".join(MIRRORS[0] + name for name in missing)
        raise MissingDataError(
            f"mnist: fetch {len(missing)} files and put them into {cache / 'mnist'}, or into the folder that "
            f"BNRANK_DATA names:\n{wanted}\nThey are missing in {', '.join(map(str, folders))} ({where}); {tried}"
        )
    return paths


def _download(name: str, folder: Path) -> tuple[Path, list[str]]:
    """Return the path of a file downloaded from the first mirror that provides it, and the failures, one per mirror."""
    import pooch

    failures = []
    fetch = pooch.HTTPDownloader(timeout=30)
    for mirror in MIRRORS:
        try:
            pooch.retrieve(mirror + name, f"sha256:{REGISTRY[name]}", name, folder, downloader=fetch)
            return folder / name, []
        except (OSError, ValueError) as error:  # no network, or a wrong hash
            text = str(error)  # urllib3's text is long and less informative than the type
            reason = type(error).__name__ if "ConnectionPool(" in text else text.partition(": ")[0]
            failures.append(f"{mirror + name}: {reason}")
    return folder / name, failures


def _task(pools: Sequence[np.ndarray], white: int, name: str, settings: Mapping[str, Any]) -> Task:
    """Return the task of images (N, pixels), uint8, with maximum ``white``, and labels, for training and testing.

    ``settings`` are the arguments of the generator.
    """
    images, values = pools[0], np.arange(256) / white
    if validation.flag(settings["standardize"], "standardize"):
        counts = sum(np.bincount(part.ravel(), minlength=256) for part in np.array_split(images, 50))
        weights = cast(np.ndarray, counts) / images.size
        mean = float(weights @ values)
        values = (values - mean) / np.sqrt(weights @ (values - mean) ** 2)
    table = values.astype(np.float32)  # from pixel to float32, rounded once
    train, test = streams(settings["seed"], 2)
    data: dict[str, Any] = {}
    for end, (pixels, digit), stream in (("", pools[:2], train), ("_test", pools[2:], test)):
        count = settings[f"n{end}"]
        if end == "" or count != 0:
            chosen = _choose(count, len(pixels), f"n{end}", int(end == ""), stream)
            data |= {f"x{end}": table[pixels[chosen]], f"y{end}": digit[chosen].astype(np.int64)}
    return Task(**data, loss="cross_entropy", name=name, classes=10, settings=settings)


def _choose(count: int | None, available: int, name: str, minimum: int, generator: torch.Generator) -> np.ndarray:
    if count is None:
        return np.arange(available)
    few = validation.integer(count, name, minimum) <= available
    validation.expect(few, name, f"{count}", f"at most the {available} there are")
    return torch.randperm(available, generator=generator)[:count].numpy()
