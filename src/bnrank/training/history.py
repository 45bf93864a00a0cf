"""History of a run or a flow, with singular values at some of its rows, and the result of a run."""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank._core import checksums, identity, netcdf, sources, store, validation
from bnrank._core.content import Part
from bnrank._core.files import StorageError, one_writer, prepare_folder
from bnrank._core.results import Printed
from bnrank._version import __version__
from bnrank.measures import balance, convolution
from bnrank.networks import MLP, reading
from bnrank.networks.files import blueprint, build
from bnrank.networks.functional import unwrap
from bnrank.training import overview
from bnrank.training.ensemble import Workers, filled, split, squared_norm
from bnrank.training.options import Watcher
from bnrank.training.settings import Settings, TrainSettings, by_hand

if TYPE_CHECKING:
    import xarray as xr


FINISHED, FINISHED_KIND = "finished.safetensors", "finished network"
NETWORKS, HISTORY, SUMMARY, SETTINGS = "networks.safetensors", "history.nc", "summary.nc", "settings.json"
RESULT = "result.nc"  # of an ensemble of a grid, in the folder of its run
OWN = frozenset({NETWORKS, HISTORY, SUMMARY, SETTINGS, RESULT, FINISHED})  # the files with checksums
LARGE = 300  # a flow uses Lanczos iterations for the top singular values of matrices with both sides above this
SERIES = {
    "loss": ("C + lambda ||theta||^2", "regularized loss"),
    "cost": ("C", "data cost"),
    "parameter_norm": ("||theta||^2", "squared norm of all parameters"),
    "gradient_norm": ("||grad (C + lambda ||theta||^2)||", "norm of the gradient of the regularized loss"),
    "balance_residual": ("1", "imbalance of incoming and outgoing norms (T14), in [0, 1]"),
}


Series = Mapping[str, tuple[str, str]]


class Recorder:
    """Recorder of series over (member, step), with the largest singular values of the layers at some rows.

    Parameters
    ----------
    net : nn.Module
        Architecture, which determines the layers.
    example : Tensor
        Two samples, which determine the input sizes of convolutions.
    settings : Settings
        Settings stored with the history, including ``top_k``.
    members : int
        Number of members.
    workers : Workers
        Threads that share the layers.
    series : mapping
        Unit and description of each series.
    """

    lanczos = False  # for the top singular values of large matrices, with error about 1e-5 times the largest

    def __init__(
        self, net: nn.Module, example: Tensor, settings: Settings, members: int, workers: Workers, series: Series
    ) -> None:
        self.net, self.settings, self.members, self.workers, self.series = net, settings, members, workers, series
        self.is_chain = by_hand(net)
        trained = {name: tuple(p.shape) for name, p in net.named_parameters() if p.requires_grad}
        names, self.shapes = list(trained), list(trained.values())
        read = reading.read(net, example)
        self.skipped = [vars(skipped) for skipped in read.skipped]
        self.notes: list[dict[str, str]] = []
        self.top_k = 0
        self.layers: list[tuple[str, int, Callable[[Tensor], Tensor]]] = []
        for layer in read.layers:
            weight = layer.matrix.stored.name
            spectrum, count, note = _spectrum(layer, settings.top_k)
            reason = "its weight is not trained" if weight not in trained else note if spectrum is None else ""
            if reason or spectrum is None:
                self.skipped.append({"name": layer.name, "type": type(layer.module).__name__, "reason": reason})
                continue
            matrix = self.lanczos and not layer.is_convolution
            if matrix and min(layer.weight.shape) > max(LARGE, 4 * settings.top_k):
                spectrum = functools.partial(_of_layer, layer, _leading, settings.top_k)
            self.layers.append((layer.name, names.index(weight), spectrum))
            self.top_k = max(self.top_k, min(settings.top_k, count))
            if note:
                self.notes.append({"name": layer.name, "note": note})
        self.steps: list[int] = []
        self.rows: list[Tensor] = []  # each of shape (series, members)
        self.spectra: dict[int, Tensor] = {}  # by row, each of shape (members, layers, top_k)

    def add(self, step: int, row: Tensor) -> None:
        """Add a row of all series, shape (series, members)."""
        self.steps.append(step)
        self.rows.append(row)

    def measure(self, row: int, theta: Tensor, active: Sequence[int] = (0,)) -> None:
        """Compute the singular values of the active members, whose parameters are the rows of ``theta``."""
        pieces = split(theta, self.shapes)
        found = torch.full((self.members, len(self.layers), self.top_k), torch.nan, dtype=torch.float64)

        def one(i: int, member: int, layer: int) -> None:
            _, index, spectrum = self.layers[layer]
            values = spectrum(pieces[index][i])
            found[member, layer, : len(values)] = values.cpu()

        layers = range(len(self.layers))
        tasks = [functools.partial(one, i, member, layer) for i, member in enumerate(active) for layer in layers]
        self.workers.share(tasks)
        self.spectra[row] = found

    def state(self) -> dict[str, Tensor]:
        """Return everything recorded so far."""
        return {
            "history.steps": torch.tensor(self.steps),
            "history.rows": torch.stack(self.rows) if self.rows else torch.zeros(0),
            "history.measured": torch.tensor(list(self.spectra)),
            "history.spectra": torch.stack(list(self.spectra.values())) if self.spectra else torch.zeros(0),
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""
        self.steps, self.rows = state["history.steps"].tolist(), list(state["history.rows"])
        self.spectra = dict(zip(state["history.measured"].tolist(), state["history.spectra"], strict=True))

    def forget_last(self) -> None:
        """Drop the last row."""
        self.steps.pop()
        self.rows.pop()
        self.spectra.pop(len(self.rows), None)

    def dataset(self, coords: Mapping[str, Any], attrs: Mapping[str, Any]) -> xr.Dataset:
        """Return the history over (member, step), with singular values over (member, step, layer, index)."""
        import xarray as xr

        table = torch.stack(self.rows, dim=2).numpy() if self.rows else np.zeros((len(self.series), self.members, 0))
        spectra = np.full((self.members, len(self.steps), len(self.layers), self.top_k), np.nan)
        for row, found in self.spectra.items():
            spectra[:, row] = found.numpy()
        variables: dict[str, Any] = {
            name: (("member", "step"), values, {"units": units, "long_name": text})
            for (name, (units, text)), values in zip(self.series.items(), table, strict=True)
        }
        text = {"units": "1", "long_name": "singular values of the weights, largest first"}
        variables["weight_singular_values"] = (("member", "step", "layer", "index"), spectra, text)
        own: dict[str, Any] = {
            "member": np.arange(self.members),
            "step": np.array(self.steps, dtype=np.int64),
            "layer": np.arange(1, len(self.layers) + 1),
            "index": np.arange(1, self.top_k + 1),
            "layer_name": ("layer", np.array([name for name, *_ in self.layers], dtype=str)),
        }
        about = {
            "settings": self.settings.to_json(),
            "bnrank_version": __version__,
            "depth": len(self.layers),
            "skipped": json.dumps(self.skipped),
            "notes": json.dumps(self.notes),
        }
        return xr.Dataset(variables, coords=own | dict(coords), attrs=about | dict(attrs))


class EnsembleRecorder(Recorder):
    """Recorder of the history of a training run."""

    def record(
        self, step: int, active: list[int], theta: Tensor, loss: Tensor, ridge: Tensor, gradient_norm: Tensor
    ) -> dict[str, Tensor]:
        """Add a row for the active members, without singular values, and return it; NaN for other members."""
        row = {name: torch.full((self.members,), torch.nan, dtype=torch.float64) for name in self.series}
        norms = torch.stack([squared_norm(r) for r in theta]).cpu()
        row["loss"][active], row["parameter_norm"][active] = loss, norms
        row["cost"][active], row["gradient_norm"][active] = loss - ridge * norms, gradient_norm
        if self.is_chain:
            pieces = split(theta, self.shapes)
            step_ = 2 if len(self.shapes) > len(self.layers) else 1

            def balanced(i: int, member: int) -> None:
                mine = [piece[i] for piece in pieces]
                residual = balance.between(mine[::step_], mine[1::2] if step_ == 2 else []).residual
                row["balance_residual"][member] = residual

            self.workers.share([functools.partial(balanced, i, member) for i, member in enumerate(active)])
        self.add(step, torch.stack(list(row.values())))
        return row


def begin(watch: Watcher, members: int, step: int) -> None:
    """Tell a watcher that asks for it the size of an ensemble and the steps taken before a resume."""
    told = getattr(watch, "begin", None)
    if callable(told):
        told(members, step)


def show(
    watch: Watcher, names: Sequence[str], shapes: Any, parameters: Tensor, gradient: Tensor | None, **row: Any
) -> None:
    """Show a row of one member to a watcher, with flat parameters and gradient, shape (size,), split by name."""

    def named(flat: Tensor) -> dict[str, Tensor]:
        return dict(zip(names, split(flat.detach(), shapes), strict=True))

    known = None if gradient is None else named(gradient)
    watch.observe(parameters=named(parameters), gradient=known, **row)


def _spectrum(layer: reading.Layer, k: int) -> tuple[Callable[[Tensor], Tensor] | None, int, str]:
    """Return a function for the top singular values of a layer's weight, the total number of them, and a note.

    The function is None if they cannot be computed, and the note then gives the reason.
    """
    if layer.is_transposed:
        return None, 0, "transposed convolution"
    if not layer.is_convolution:
        return functools.partial(_of_layer, layer, top_singular_values, k), min(layer.matrix.shape), ""
    values, note = convolution.circular_singular_values(layer)
    if values is None or layer.input_shape is None:
        return None, 0, note
    conv: Any = layer.module
    size = layer.input_shape[-(layer.weight.ndim - 2) :]

    def of_operator(kernel: Tensor) -> Tensor:
        found = convolution.conv_singular_values(
            kernel, size, stride=conv.stride, dilation=conv.dilation, groups=conv.groups
        )
        return found.flatten().sort(descending=True).values[:k]

    return of_operator, len(values), note


def _of_layer(layer: reading.Layer, values: Callable[[Tensor, int], Tensor], k: int, tensor: Tensor) -> Tensor:
    """Return the k largest singular values of a layer's weight from the tensor that stores it, perhaps among others."""
    return values(layer.matrix.weight(tensor), k)


def top_singular_values(matrix: Tensor, k: int) -> Tensor:
    """Return the k largest singular values, float64, as roots of the eigenvalues of the smaller Gram matrix.

    At width 100 this is four times faster than an SVD. Values below 1e-8 times the largest are lost in rounding, less
    than the error from rounding the weights to float32.
    """
    matrix = matrix.detach().to(torch.float64, copy=True)  # aligned: BLAS depends on it in the last bits
    gram = matrix @ matrix.mT if matrix.shape[0] <= matrix.shape[1] else matrix.mT @ matrix
    if not bool(torch.isfinite(gram).all()):
        return torch.full((min(k, len(gram)),), torch.nan, dtype=torch.float64, device=matrix.device)
    return torch.linalg.eigvalsh(gram).flip(0)[:k].clamp_min(0).sqrt()


def _leading(matrix: Tensor, k: int) -> Tensor:
    """Return the k largest singular values of a large matrix, float64, with error about 1e-5 times the largest."""
    from scipy.sparse.linalg import svds

    array = matrix.detach().cpu().numpy()
    if not np.isfinite(array).all():
        return torch.full((k,), torch.nan, dtype=torch.float64)
    scale = float(np.abs(array).max())
    if scale == 0:
        return torch.zeros(k, dtype=torch.float64)
    start = np.random.default_rng(0).standard_normal(min(array.shape)).astype(array.dtype)
    values = svds(array / array.dtype.type(scale), k=k, v0=start, tol=1e-3, return_singular_vectors=False)
    return torch.from_numpy(np.sort(values)[::-1].astype(float) * scale)


@dataclass(frozen=True)
class Run(Printed):
    """A trained ensemble.

    Attributes
    ----------
    history : xarray.Dataset
        Over (member, step): ``loss`` C + lambda ||theta||^2, ``cost`` C, ``parameter_norm`` ||theta||^2,
        ``gradient_norm`` of the regularized loss and ``balance_residual`` (T14). Over (member, step, layer, index):
        ``weight_singular_values``. Values are NaN after a member has stopped. Coordinates per member: seed, ridge, lr,
        status.
    summary : xarray.Dataset
        Over member: ``status``, the series over (member, step) at the last recorded step with a finite loss, and this
        step as ``steps``. Status is "finished" (all steps done), "converged" (stopping criterion met), "stalled" (no
        descent found, even along the negative gradient, or no progress in 200 evaluations of L-BFGS: a kink of the
        loss, or rounding), "diverged" (non-finite loss;
        the parameters are those of the last recorded row with a finite loss) or "interrupted".
    settings : TrainSettings
        The settings of the run.
    seconds : float
        Wall time of training.
    finished : tuple of Finished or None
        With ``finish``, one per member: the network at a stationary point, with its certificate; None if the member
        diverged or was interrupted. ``network`` then returns it, in float64, and the summary has its loss as
        ``finished_loss``, its relative gradient as ``stationarity``, the kind of point, and why it ended. The other
        series remain those of the trained network. Empty without ``finish``.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.low_rank_map(n=40, seed=0)
    >>> run = bnrank.train(bnrank.MLP([20, 8, 20]), task, ridge=1e-2, steps=5, members=2, seed=0, progress=False)
    >>> run.network(1).widths
    [20, 8, 20]
    >>> run.summary.status.values.tolist()
    ['finished', 'finished']
    """

    history: xr.Dataset
    summary: xr.Dataset
    settings: TrainSettings
    seconds: float
    net: nn.Module
    parameters: Tensor
    finished: tuple[Any, ...] = ()

    def _content(self) -> list[Part]:
        return overview.of_run(self)

    @property
    def members(self) -> int:
        """Number of members."""
        return self.parameters.shape[0]

    def network(self, member: int = 0) -> nn.Module:
        """Return member ``member`` as a new `nn.Module`.

        Raises
        ------
        TypeError, ValueError
            If the member does not exist.
        """
        member = validation.integer(member, "member", 0)
        validation.expect(member < self.members, "member", f"{member}", f"0 to {self.members - 1}")
        return filled(self.net, self.parameters[member])

    def save(self, out: str | os.PathLike[str], tag: str | None = None) -> Path:
        """Write the run to a folder: ``history.nc``, ``summary.nc``, ``networks.safetensors`` and ``settings.json``.

        Their checksums are in ``SHA256SUMS``, written last (``sha256sum -c SHA256SUMS``).

        Parameters
        ----------
        out : path
            The folder; created if necessary.
        tag : str, optional
            The version of parts of the network that cannot be identified, as in `Save`.

        Raises
        ------
        TypeError
            If a part of the network cannot be identified, and no version is given.
        ValueError
            If the folder is full or cannot be written to, a training is at work in it, or it holds checksums
            (SHA256SUMS) of other files.
        """
        tag = validation.optional(validation.text, tag, "tag")
        parts = self.settings.identity | ({} if tag is None else {"tag": repr(tag)})
        identity.require(parts)
        folder = prepare_folder(out)
        with one_writer(folder):
            checksums.refuse_foreign(folder, OWN)
            self._write(folder, parts)
        return folder

    def _write(self, folder: Path, parts: Mapping[str, str]) -> None:
        """Write the run, identified by its parts, to a folder in which no other process is at work."""
        plain = by_hand(self.net) or not isinstance(self.net, MLP)
        plan = blueprint(self.net) if plain and all(p.requires_grad for p in self.net.parameters()) else None
        settings = asdict(self.settings) | {"identity": parts}
        about = {"settings": settings, "seconds": self.seconds, "network": plan}
        files: dict[str, checksums.Content] = {
            HISTORY: netcdf.dump(self.history),
            SUMMARY: netcdf.dump(self.summary),
            SETTINGS: f"{self.settings.to_json()}\n".encode(),
            NETWORKS: lambda path: store.save(path, {"parameters": self.parameters}, about, "run"),
        }
        if self.finished:
            files[FINISHED] = functools.partial(finishing("ensembles").write_members, members=self.finished)
            about["finished"] = True
        try:
            checksums.replace(folder, files)
        except (OSError, ValueError) as error:
            raise StorageError(f"out: cannot write to {str(folder)!r}: {error}") from error

    @classmethod
    def open(cls, out: str | os.PathLike[str], net: nn.Module | None = None) -> Run:
        """Return a saved run.

        Parameters
        ----------
        out : path
            Folder of the run.
        net : nn.Module, optional
            The architecture. Required unless it is a `bnrank.MLP` or a residual or convolutional network of
            `bnrank.networks` with all parameters trained.

        Raises
        ------
        ValueError
            If the folder holds no run or a damaged one, or if ``net`` is required and missing, or another network than
            that of the run; the message names the first difference. The values of its trained parameters do not matter.
        """
        return open_run(out, net, "out")


def open_run(path: str | os.PathLike[str], net: nn.Module | None, name: str) -> Run:
    """Return a saved run as :meth:`Run.open` does; messages call the path by ``name``."""
    folder = sources.as_path(path, name)
    if not (folder / NETWORKS).exists():
        raise ValueError(f"{name}: {str(folder)!r} holds no run, expected a file {NETWORKS} in it")
    advice = "put back a copy of the file, or train the run again with resume=False"
    files = checksums.read(folder, (HISTORY, SUMMARY, SETTINGS, NETWORKS), name, advice)
    stored = store.read(folder / NETWORKS, name=name, data=files[NETWORKS])
    finished: tuple[Any, ...] = ()
    if stored.about.get("finished"):
        content = checksums.read(folder, (FINISHED,), name, advice)[FINISHED]
        finished = finishing("ensembles").read_members(folder / FINISHED, content)
    try:
        validation.expect(stored.kind == "run", "kind", stored.kind, "'run'")
        parameters = stored.tensors["parameters"]
        settings = TrainSettings.from_json(stored.about["settings"])
        seconds, plan = float(stored.about["seconds"]), stored.about["network"]
        validation.expect(parameters.ndim == 2, "parameters", parameters, "shape (members, size)")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise sources.DamagedError(f"{name}: {str(folder / NETWORKS)!r} is damaged or of no run: {error}") from error
    history, summary = (netcdf.parse(files[file], folder / file) for file in (HISTORY, SUMMARY))
    if net is None:
        if plan is None:
            raise ValueError(f"net: the run is of a {settings.network}; give a module of this architecture")
        net = built(plan, parameters, folder / NETWORKS, name)
        return Run(history, summary, settings, seconds, net, parameters, finished)
    identity.expect_same(settings.identity, unwrap(net), repr(str(folder)))
    return Run(history, summary, settings, seconds, net, parameters, finished)


def finishing(module: str) -> Any:
    """Return a module of finished networks, imported on first use, with SciPy's optimizers."""
    return importlib.import_module(f"bnrank.training.finishing.{module}")


def is_finished(value: object) -> bool:
    """Return whether a value is what `bnrank.finish` returned."""
    module = sys.modules.get("bnrank.training.finishing.finisher")  # not imported before there is one
    return module is not None and isinstance(value, module.Finished)


def built(plan: Any, parameters: Tensor, path: Path, name: str) -> nn.Module:
    """Return the network of a blueprint, whose parameters must be as many as those of a member."""
    try:
        net = build(plan, stored={"parameters": parameters[0]})
        size = sum(p.numel() for p in net.parameters())
        validation.expect(size == parameters.shape[1], "network", f"{size} parameters", f"{parameters.shape[1]}")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RuntimeError) as error:
        raise sources.DamagedError(f"{name}: {str(path)!r} is damaged or of no run: {error}") from error
    return net


def last_rows(known: xr.DataArray) -> xr.DataArray:
    """Return, per member, the last row in which ``known`` (member, step) is true, or 0 if there is none."""
    last = known.sizes["step"] - 1 - known.isel(step=slice(None, None, -1)).argmax("step")
    return last.where(known.any("step"), 0).reset_coords(drop=True)


def summarize(history: xr.Dataset) -> xr.Dataset:
    """Return the series of every member at its last recorded step with a finite loss, and this step, over member."""
    rows = last_rows(abs(history["loss"]) < np.inf)
    series = [name for name, values in history.data_vars.items() if values.dims == ("member", "step")]
    validation.expect(history.sizes["step"], "history", "no recorded step", "at least one")
    summary = history[series].isel(step=rows).reset_coords("step").rename(step="steps").reset_coords("status")
    return summary.drop_vars(["layer", "layer_name", "index"], errors="ignore").assign_attrs(history.attrs)
