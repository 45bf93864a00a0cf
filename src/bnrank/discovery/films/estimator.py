"""The estimator of state variables of films."""

import os
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from bnrank._core import store, validation
from bnrank._core.store import Stored
from bnrank.discovery.estimators.base import voice
from bnrank.discovery.estimators.summary import opened, save
from bnrank.discovery.films.components import Components, components_of
from bnrank.discovery.films.frames import (
    SEEN,
    SHOWN,
    Films,
    Windows,
    choose_stride,
    read_films,
    split,
    windows_of,
)
from bnrank.discovery.films.needed import Tried, interval_of, tried
from bnrank.discovery.films.networks import Shape, network, outputs, trained, unexplained
from bnrank.discovery.films.summary import FilmSummary
from bnrank.discovery.films.verdict import NOTHING, Verdict, is_predicted, judge, nothing
from bnrank.training import Save
from bnrank.training.options import given

Array = NDArray[np.float32]
Pair = tuple[torch.nn.Sequential, torch.nn.Sequential]  # encoder and decoder

KIND = "state variables"  # of a stored file
MORE = 4  # largest number of coordinates beyond the state dimension that is tried
MAX_ROWS = 1000  # of the coordinates in the summary


@dataclass(eq=False, repr=False)
class StateVariables(BaseEstimator):
    """The number of state variables of films, and coordinates for them.

    Networks carry two frames of a film through a bottleneck z to the next two (Chen et al. 2022). The *state
    dimension* is the local dimension of the image z of all windows (:func:`bnrank.discovery.dimension.local_dimension`,
    without whitening). *Coordinates needed* is the least number of coordinates, from the state dimension on, through
    which a network predicts nearly as well: one more than the state dimension for an angle that goes all the way
    round, since a circle does not fit into a line.

    Parameters
    ----------
    encoder : {"linear", "conv"}
        What networks see of two frames: their principal components, or their pixels through two convolutional layers
        of patches that do not overlap. "conv" is slower.
    stride : int or "auto"
        Frames from one frame of a window to the next. "auto": the smallest at which frames change visibly.
    n_coordinates : int or "auto"
        Number of columns of ``transform``. "auto": as many as needed.
    n_latent : int
        Width of the bottleneck, an upper bound of the state dimension.
    width : int
        Width of the other hidden layers.
    ridge : float
        lambda of training.
    steps : int
        Steps of training in mini-batches of 256 windows.
    n_networks : int
        Number of networks, each from other initial weights.
    random_state : int
        Seed of initial weights, mini-batches and held-out films.
    out : path or training.Save, optional
        Folder for checkpoints; the same call resumes training there.
    progress : bool or "auto"
        Show progress on stderr; "auto": on a terminal.

    Attributes
    ----------
    state_dimension_ : int
        Number of state variables.
    state_dimension_interval_ : tuple of int
        Its interval: all networks, all windows and halves of the films, limits raised and lowered.
    undetermined_ : bool
        Whether the films do not settle the state dimension.
    reason_ : str
        The evidence, or why it is undetermined.
    coordinates_needed_ : int
        Least number of coordinates tried that predict nearly as well as all; 0 if none does.
    coordinates_needed_interval_ : tuple of int
        Its interval, by networks of other seeds, two standard errors over held-out films, and the state dimension's.
    unexplained_ : float
        Share of the variance of the next frames that is unexplained on held-out films.

    Raises
    ------
    TypeError, ValueError
        If a parameter is out of range, or ``frames`` are not films; the message names it.

    Examples
    --------
    >>> angle = np.random.default_rng(0).uniform(0, 6.28, (60, 1)) + 0.6 * np.arange(6)  # 60 films of 6 frames
    >>> line = np.linspace(-1, 1, 8)
    >>> bump = [np.exp(-8 * (line - 0.5 * f(angle)[..., None]) ** 2) for f in (np.cos, np.sin)]
    >>> films = bump[0][..., :, None] * bump[1][..., None, :]
    >>> found = StateVariables(steps=300).fit(films)
    >>> found.state_dimension_, found.coordinates_needed_, found.transform(films).shape
    (1, 2, (300, 2))
    """

    _: KW_ONLY
    encoder: str = "linear"
    stride: int | str = "auto"
    n_coordinates: int | str = "auto"
    n_latent: int = 16
    width: int = 128
    ridge: float = 1e-5
    steps: int = 1500
    n_networks: int = 3
    random_state: int = 0
    out: str | os.PathLike[str] | Save | None = None
    progress: bool | str = "auto"

    def fit(self, frames: Any, y: None = None) -> Self:
        """Find the state dimension and coordinates of films.

        Parameters
        ----------
        frames : ndarray, Tensor, or list of films
            One film (T, H, W) or (T, H, W, C), several (n, T, H, W) or (n, T, H, W, C), or a list of films of
            different lengths. Whole films are held out; fewer than 12 films are cut into blocks of frames.
        y : None
            Ignored; for scikit-learn.
        """
        for name in [name for name in vars(self) if name.endswith("_") and not name.startswith("_")]:
            delattr(self, name)
        self._check()
        films = read_films(frames)
        with voice(self.progress) as tell:
            tell("principal components")
            stride = choose_stride(films, self.stride)
            windows = windows_of([len(film) for film in films], stride)
            rows, held_out = split(windows, self.random_state)
            seen = np.unique(windows.film[rows])
            self.frame_shape_ = tuple(films[0].shape[1:])
            self.stride_ = stride
            self.components_ = components_of([films[i] for i in seen], self.random_state)
        codes = [self.components_.project(film) for film in films]
        y_codes = windows.pick(codes, range(SEEN, SHOWN)).reshape(len(windows), -1)
        still = not self.components_.scale
        self.networks_: list[Pair] = []
        self.unexplained_all_ = np.zeros(0)
        self.coordinate_network_: Pair | None = None
        through, coordinates = list[Tried](), np.zeros((0, 0), dtype=np.float32)
        if still:
            verdict = nothing("all frames are equal", self.n_latent)
        else:
            verdict = self._learn(self._seen(films, codes, windows), y_codes, windows, rows, held_out)
        k = verdict.dimension if self.n_coordinates == "auto" else self.n_coordinates
        if verdict.found and k:
            through, coordinates = self._coordinates(films, codes, windows, y_codes, rows, held_out, int(k))
        self._keep(verdict, windows, films, through, coordinates)
        return self

    def transform(self, frames: Any) -> Array:
        """Return coordinates of the state at every pair of frames ``stride_`` apart, film after film.

        Returns
        -------
        ndarray
            (pairs, n_coordinates), of mean 0 and covariance 1 on the films of the fit; a film of T frames has
            T - stride_ pairs. No columns if nothing was found.
        """
        z = self._latent(frames)
        if self.coordinate_network_ is None:
            return np.zeros((len(z), 0), dtype=np.float32)
        return self._rotated(outputs(self.coordinate_network_[0], torch.from_numpy(z)))

    def predict(self, frames: Any) -> Array:
        """Return the two frames after every pair of frames, (pairs, 2, H, W[, C]), by the best network.

        If nothing was found, they are the mean frame.
        """
        z = self._latent(frames)
        best = self._best() if self.state_dimension_ else None
        flat = np.repeat(self.components_.mean[None], 2 * len(z), axis=0)
        if best is not None:
            codes = outputs(best[1], torch.from_numpy(z))
            flat = self.components_.restore(codes.reshape(2 * len(z), -1))
        shape = self.frame_shape_ if self.frame_shape_[-1] > 1 else self.frame_shape_[:-1]
        return flat.reshape(len(z), 2, *shape)

    def score(self, frames: Any, y: None = None) -> float:
        """Return the share of the variance of the next frames that the best network explains, in their components."""
        check_is_fitted(self)
        films = read_films(frames, like=self.frame_shape_)
        windows = windows_of([len(film) for film in films], self.stride_)
        codes = [self.components_.project(film) for film in films]
        target = windows.pick(codes, range(SEEN, SHOWN)).reshape(len(windows), -1)
        best = self._best() if self.state_dimension_ else None
        if best is None:
            return 0.0
        predicted = outputs(torch.nn.Sequential(*best), self._seen(films, codes, windows))
        return 1.0 - unexplained(predicted, target, target.mean(0))

    def summary(self) -> FilmSummary:
        """Return the result of the fit: a page of text when printed, with the data of the figures as attributes."""
        check_is_fitted(self)
        return self.summary_

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the fitted estimator to one safetensors file, without ``out``; return the path."""
        check_is_fitted(self)
        return save(self, path, KIND, without=("out",))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "StateVariables":
        """Return the estimator in a file.

        Raises
        ------
        ValueError
            If there is no such file, or it holds something else or is corrupted.
        """
        return open_state_variables(store.load(path, KIND))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "summary_")

    def _check(self) -> None:
        validation.choice(self.encoder, "encoder", ["linear", "conv"])
        for name in ("n_latent", "width", "steps", "n_networks"):
            validation.integer(getattr(self, name), name)
        validation.number(self.ridge, "ridge", 0.0)
        validation.integer(self.random_state, "random_state", 0)
        if isinstance(self.n_coordinates, str):
            validation.choice(self.n_coordinates, "n_coordinates", ["auto"])
        else:
            validation.integer(self.n_coordinates, "n_coordinates")
        if isinstance(self.progress, str):
            validation.choice(self.progress, "progress", ["auto"])
        if self.out is not None:
            given(Save, self.out, "out")

    def _seen(self, films: Films, codes: list[Array], windows: Windows) -> Tensor:
        """Return what networks see of the windows: components (N, 2 P), or pixels (N, 2 C, H, W)."""
        if self.encoder == "linear":
            return torch.from_numpy(windows.pick(codes, range(SEEN)).reshape(len(windows), -1))
        height, width, channels = self.frame_shape_
        pixels = windows.pick(films, range(SEEN)) - self.components_.mean.reshape(self.frame_shape_)
        pixels *= np.sqrt(self.components_.mean.size) / (self.components_.scale or 1.0)
        moved = np.moveaxis(pixels, -1, 2).reshape(len(windows), SEEN * channels, height, width)
        return torch.from_numpy(np.ascontiguousarray(moved, dtype=np.float32))

    def _learn(
        self, x: Tensor, y: Array, windows: Windows, rows: NDArray[np.int64], held_out: NDArray[np.int64]
    ) -> Verdict:
        """Train the networks, and return the state dimension."""
        height, width, channels = self.frame_shape_
        image = (SEEN * channels, height, width)
        shape = Shape(image, x.shape[-1], y.shape[1], self.width, self.n_latent, self.encoder)
        seeds = [self.random_state + i for i in range(self.n_networks)]
        made = self._trained(shape, x[torch.from_numpy(rows)], y[rows], seeds, self.ridge, "networks")
        self.networks_ = [(net[0], net[1]) for net in made]
        x_test, y_test, mean = x[torch.from_numpy(held_out)], y[held_out], y[rows].mean(0)
        predicted = [outputs(net, x_test) for net in made]
        self.unexplained_all_ = np.array([unexplained(p, y_test, mean) for p in predicted])
        best = int(np.argmin(self.unexplained_all_))
        errors = np.square(predicted[best] - y_test).sum(1, dtype=float)
        of_mean = np.square(y_test - mean).sum(1, dtype=float)
        if not is_predicted(errors, of_mean, windows.unit[held_out]):
            return nothing(NOTHING, self.n_latent)
        images = [outputs(net[0], x).astype(float) for net in made]
        return judge(images, windows, self.unexplained_all_.tolist(), self.random_state)

    def _trained(self, shape: Shape, x: Tensor, y: Array, seeds: list[int], ridge: float, name: str) -> list[Any]:
        folder = None if self.out is None else given(Save, self.out, "out")
        return trained(
            lambda seed: network(shape, seed),
            x,
            torch.from_numpy(y),
            ridge=ridge,
            steps=self.steps,
            seeds=seeds,
            out=None if folder is None else Path(folder.out) / name,
            resume=folder is None or folder.resume,
            progress=self.progress is True,
        )

    def _coordinates(
        self,
        films: Films,
        codes: list[Array],
        windows: Windows,
        y: Array,
        rows: NDArray[np.int64],
        held_out: NDArray[np.int64],
        first: int,
    ) -> tuple[list[Tried], Array]:
        """Train networks from z through few coordinates to the next frames; keep the first that suffices.

        Return how well each number of coordinates predicts, and the coordinates of some windows.
        """
        best = self._best()
        assert best is not None
        z = torch.from_numpy(outputs(best[0], self._seen(films, codes, windows)))
        target, unit = y[held_out], windows.unit[held_out]
        of_mean = np.square(target - y[rows].mean(0)).sum(1, dtype=float)
        whole = np.square(outputs(best[1], z[held_out]) - target).sum(1, dtype=float)
        seeds = [self.random_state + i for i in range(self.n_networks)]
        found, settled, last = list[Tried](), False, first + MORE if self.n_coordinates == "auto" else first
        for k in range(first, last + 1):
            shape = Shape((1, 1, 1), z.shape[1], y.shape[1], self.width, k, "linear")
            nets = self._trained(shape, z[rows], y[rows], seeds, self.ridge, f"coordinates-{k}")
            errors = [np.square(outputs(net, z[held_out]) - target).sum(1, dtype=float) for net in nets]
            found.append(tried(k, np.array(errors), whole, of_mean, unit))
            if not settled:
                encoder = nets[0][0]
                self.coordinate_network_ = (encoder, nets[0][1])
                settled = found[-1].enough
            if found[-1].certain:
                break
        made = outputs(encoder, z).astype(float)
        self.offset_ = made.mean(0)
        _, s, axes = np.linalg.svd(made - self.offset_, full_matrices=False)
        self.rotation_ = axes.T / np.maximum(s, 1e-12 * s[0]) * np.sqrt(len(made))
        shown = np.linspace(0, len(windows) - 1, min(len(windows), MAX_ROWS)).astype(int)
        return found, self._rotated(made[shown])

    def _rotated(self, values: Array) -> Array:
        return np.asarray((values - self.offset_) @ self.rotation_, dtype=np.float32)

    def _best(self) -> Pair | None:
        return self.networks_[int(np.argmin(self.unexplained_all_))] if self.networks_ else None

    def _latent(self, frames: Any) -> Array:
        """Return z of the best network at every pair of frames, or no columns if nothing was trained."""
        check_is_fitted(self)
        films = read_films(frames, like=self.frame_shape_)
        shortest = min(len(film) for film in films)
        validation.expect(shortest > self.stride_, "frames", f"{shortest} frame(s)", f"at least {self.stride_ + 1}")
        counts = [len(film) - self.stride_ for film in films]
        film = np.repeat(np.arange(len(films)), counts)
        start = np.concatenate([np.arange(count) for count in counts])
        pairs = Windows(film, start, self.stride_, film)
        if (best := self._best()) is None:
            return np.zeros((len(pairs), 0), dtype=np.float32)
        codes = [self.components_.project(film) for film in films]
        return outputs(best[0], self._seen(films, codes, pairs))

    def _keep(self, verdict: Verdict, windows: Windows, films: Films, found: list[Tried], coordinates: Array) -> None:
        """Set the fitted attributes and the summary."""
        self.state_dimension_ = verdict.dimension
        self.state_dimension_interval_ = verdict.interval
        self.undetermined_, self.reason_ = verdict.undetermined, verdict.reason
        self.unexplained_ = float(self.unexplained_all_.min(initial=1.0))
        self.coordinates_needed_ = next((entry.k for entry in found if entry.enough), 0)
        self.coordinates_needed_interval_ = interval_of(found, verdict.interval[0], self.n_latent)
        best = None if not verdict.found else verdict.found[int(np.argmin(self.unexplained_all_))]
        self.summary_ = FilmSummary(
            films=len(films),
            frames=sum(len(film) for film in films),
            windows=len(windows),
            shape=self.frame_shape_,
            stride=self.stride_,
            encoder=self.encoder,
            components=self.components_.basis.shape[1],
            component_share=self.components_.share,
            state_dimension=verdict.dimension,
            interval=verdict.interval,
            undetermined=verdict.undetermined,
            reason=verdict.reason,
            coordinates_needed=self.coordinates_needed_,
            coordinates_needed_interval=self.coordinates_needed_interval_,
            unexplained=self.unexplained_all_,
            unexplained_by_coordinates=np.array([(entry.k, entry.left) for entry in found]).reshape(-1, 2),
            dimensions=tuple(result.dimension for result in verdict.found),
            neighbors=() if best is None else best.neighbors,
            spectrum=np.zeros((0, 0)) if best is None else best.spectrum,
            coordinates=coordinates,
            notes=tuple(self._notes(verdict, windows, films)),
        )

    def _notes(self, verdict: Verdict, windows: Windows, films: Films) -> list[str]:
        notes = []
        if self.stride_ > 1:
            notes.append(f"frames of a window are {self.stride_} frames apart, so that changes are visible")
        if len(np.unique(windows.unit)) != len(films):
            notes.append(f"few films: {len(np.unique(windows.unit))} blocks of consecutive frames, held out as a whole")
        if verdict.apart > 1:
            notes.append(
                f"windows of a film less than {verdict.apart} frames apart were not taken for different points"
            )
        if len(films) < 10:
            notes.append("the dimension is that of the states these films pass through; one orbit shows fewer than all")
        return notes


def open_state_variables(stored: Stored) -> StateVariables:
    """Return the fitted estimator in a file.

    Raises
    ------
    ValueError
        If the file contains no such estimator, or is corrupted.
    """
    return opened(stored, [StateVariables], {"FilmSummary": FilmSummary, "Components": Components})
