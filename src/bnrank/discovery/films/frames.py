"""Films as arrays, and windows of four frames: two that are seen, and the next two."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bnrank._core import validation
from bnrank._core.validation import expect

Films = list[NDArray[np.float32]]

SEEN, SHOWN = 2, 4  # frames of a window that are seen, and all
MIN_WINDOWS = 20
SHAPES = "(T, H, W), (T, H, W, C), (n, T, H, W) or (n, T, H, W, C), or a list of films"
CHANNELS = 4  # the largest last dimension that is taken for colors
CHANGE = 0.1  # mean squared change between the frames of a window, relative to that between unrelated frames
HELD_OUT = 0.25  # share of films or blocks
BLOCKS = 12  # that few films are cut into
CUT = 2  # a block is at least so many times as long as a window


@dataclass(frozen=True)
class Windows:
    """Windows of four frames.

    Attributes
    ----------
    film, start : ndarray
        The film of each window and its first frame, (N,).
    stride : int
        Frames from one frame of a window to the next.
    unit : ndarray
        Number of the film or of the block of frames that holds the window, (N,); no window is in two of them.
    """

    film: NDArray[np.int64]
    start: NDArray[np.int64]
    stride: int
    unit: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.film)

    def pick(self, values: Sequence[NDArray[np.float32]], frames: Sequence[int]) -> NDArray[np.float32]:
        """Return values of some of the four frames of every window, (N, frames, ...), from one array for each film."""
        offsets = np.cumsum([0, *(len(film) for film in values)])[:-1]
        rows = (offsets[self.film] + self.start)[:, None] + self.stride * np.asarray(frames)
        return np.concatenate(list(values))[rows]


def read_films(frames: Any, name: str = "frames", like: tuple[int, ...] | None = None) -> Films:
    """Return films as a list of arrays (T, H, W, C), float32.

    An array of four dimensions is one film in colors, (T, H, W, C), if its last dimension is at most 4, and else
    several films, (n, T, H, W).

    Parameters
    ----------
    frames : ndarray, Tensor, or list of films
        One film or several, of integers or floating-point numbers.
    name : str
        For errors.
    like : tuple of int, optional
        The expected (H, W, C).

    Raises
    ------
    TypeError, ValueError
        If it is not numeric, has another shape, or entries that are not finite.
    """
    if isinstance(frames, list | tuple):
        given = [(_array(film, f"{name}[{i}]"), f"{name}[{i}]") for i, film in enumerate(frames)]
        expect(given, name, "no films", SHAPES)
        films = [_colored(film, where, one=True) for film, where in given]
    else:
        array = _array(frames, name)
        several = array.ndim == 5 or (array.ndim == 4 and array.shape[-1] > CHANNELS)
        films = [_colored(film, name, one=True) for film in array] if several else [_colored(array, name)]
        expect(films, name, "no films", SHAPES)
    shapes = {film.shape[1:]: None for film in films}
    expect(len(shapes) == 1, name, f"frames of shapes {', '.join(map(str, shapes))}", "one shape (H, W, C)")
    shape = next(iter(shapes))
    expect(min(shape) > 0, name, f"frames of shape {shape}", "at least one pixel")
    expect(like is None or shape == like, name, f"frames of shape {shape}", f"{like}, as in the fit")
    for i, film in enumerate(films):
        expect(bool(np.isfinite(film).all()), name, f"NaN or infinite entries in film {i}", "finite numbers")
    return films


def _array(value: Any, name: str) -> NDArray[Any]:
    if isinstance(value, Tensor):
        value = validation.dense(value, name).detach().cpu()
        value = (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).numpy()
    expect(isinstance(value, np.ndarray), name, validation.describe(value), f"an array {SHAPES}", TypeError)
    expect(value.dtype.kind in "biuf", name, f"dtype {value.dtype}", "integers or floating-point numbers", TypeError)
    return np.asarray(value)


def _colored(film: NDArray[Any], name: str, one: bool = False) -> NDArray[np.float32]:
    expect(film.ndim in (3, 4), name, f"shape {film.shape}", "(T, H, W) or (T, H, W, C)" if one else SHAPES)
    with np.errstate(over="ignore"):  # beyond float32: refused as infinite
        values = np.asarray(film, dtype=np.float32)
    return values if film.ndim == 4 else values[..., None]


def windows_of(lengths: Sequence[int], stride: int, name: str = "frames") -> Windows:
    """Return all windows of films of these lengths; few films are cut into blocks of consecutive frames.

    Raises
    ------
    ValueError
        If fewer than 20 windows fit.
    """
    span = (SHOWN - 1) * stride + 1
    wanted = 1 if len(lengths) >= BLOCKS else -(-BLOCKS // len(lengths))
    film, start, unit, units = [], [], [], 0
    for i, length in enumerate(lengths):
        parts = max(1, min(wanted, length // (CUT * span)))
        edges = np.linspace(0, length, parts + 1).astype(int)
        for first, last in itertools.pairwise(edges):
            starts = np.arange(first, last - span + 1)
            film.append(np.full(len(starts), i))
            start.append(starts)
            unit.append(np.full(len(starts), units))
            units += 1
    rows = [np.concatenate(column).astype(np.int64) for column in (film, start, unit)]
    made = Windows(rows[0], rows[1], stride, rows[2])
    got = f"{sum(lengths)} frames in {len(lengths)} film(s), {len(made)} windows of {SHOWN} frames"
    expect(len(made) >= MIN_WINDOWS, name, f"{got}, {stride} apart", f"at least {MIN_WINDOWS} windows")
    expect(len(np.unique(made.unit)) > 1, name, got, "films that can be split into training and held-out ones")
    return made


def choose_stride(films: Films, wanted: int | str) -> int:
    """Return the number of frames from one frame of a window to the next.

    "auto": the smallest at which frames differ in the mean by a tenth of the squared difference of unrelated frames,
    so that speeds are visible; at most a quarter of the shortest film, or a forty-eighth of a single one.

    Raises
    ------
    ValueError
        If a film is too short for the stride.
    """
    shortest = min(len(film) for film in films)
    expect(shortest >= SHOWN, "frames", f"a film of {shortest} frame(s)", f"at least {SHOWN} in every film")
    longest = (shortest - 1) // (SHOWN - 1)
    if not isinstance(wanted, str):
        stride = validation.integer(wanted, "stride")
        expect(stride <= longest, "stride", f"{stride}", f"at most {longest} for films of {shortest} frames")
        return stride
    validation.choice(wanted, "stride", ["auto"])
    every = np.concatenate([film.reshape(len(film), -1) for film in films])
    spread = 2 * float(np.mean(np.var(every[:: max(1, len(every) // 2000)], axis=0, dtype=np.float64)))
    parts = 1 if len(films) >= BLOCKS else -(-BLOCKS // len(films))
    limit = max(1, (shortest // parts) // SHOWN)
    for stride in range(1, limit + 1):
        changes = [np.mean(np.square(film[stride:] - film[:-stride]), dtype=np.float64) for film in films[:200]]
        if np.mean(changes) >= CHANGE * spread:
            return stride
    return 1


def split(windows: Windows, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of windows for training and the held-out ones: a quarter of the films or blocks, at random."""
    units = np.random.default_rng(seed).permutation(np.unique(windows.unit))
    held_out = np.isin(windows.unit, units[: max(1, round(HELD_OUT * len(units)))])
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)
