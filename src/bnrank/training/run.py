"""The result of training."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor, nn

from bnrank._core import store, validation
from bnrank._core.files import prepare_folder, write_atomically
from bnrank._core.results import Printed
from bnrank._core.text import render
from bnrank.networks.files import blueprint, build
from bnrank.networks.mlp import MLP
from bnrank.training.ensemble import filled
from bnrank.training.settings import TrainSettings, by_hand

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Run(Printed):
    """A trained ensemble.

    Attributes
    ----------
    history : xarray.Dataset
        Over (member, step): ``loss`` C + lambda ||theta||^2, ``cost`` C, ``parameter_norm`` ||theta||^2,
        ``gradient_norm`` of the regularized loss and ``balance_residual`` (T14); ``weight_singular_values`` over
        (member, step, layer, index). NaN once a member has stopped. Coordinates seed, ridge, lr, status per member.
    summary : xarray.Dataset
        Over member: ``status``, ``steps`` and the last finite value of each of the above. Status is "finished" (all
        steps done), "converged" (a stopping criterion met), "stalled" (no descent found, in the end along the gradient:
        a kink of the loss, or rounding), "diverged" (a loss that is not finite; the parameters are those of the last
        row in which it was) or "interrupted".
    settings : TrainSettings
        The settings of the run.
    seconds : float
        Wall time of training.

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

    def __str__(self) -> str:
        shown = ["seed", "ridge", "status", "steps", "loss", "cost", "parameter_norm"]
        columns = {name: self.summary[name].values for name in shown if name in self.summary.variables}
        rows = [{"member": i} | {name: values[i] for name, values in columns.items()} for i in range(self.members)]
        title = f"{self.members} x {type(self.net).__name__}, {self.settings.optimizer}, {self.seconds:.3g} s"
        return render(rows, title=title)

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

    def save(self, out: str | os.PathLike[str]) -> Path:
        """Write the run to a folder: ``history.nc``, ``summary.nc``, ``networks.safetensors`` and ``settings.json``.

        Raises
        ------
        ValueError
            If the folder cannot be written to, or is full.
        """
        folder = prepare_folder(out)
        about = {"settings": asdict(self.settings), "seconds": self.seconds, "network": _blueprint(self.net)}
        try:
            for name, dataset in [("history.nc", self.history), ("summary.nc", self.summary)]:
                # by way of memory: HDF5 crashes where it finds the disk full
                write_atomically(folder / name, bytes(dataset.to_netcdf(engine="h5netcdf")))
            store.save(folder / "networks.safetensors", {"parameters": self.parameters}, about, "run")
            write_atomically(folder / "settings.json", self.settings.to_json() + "\n")
        except (OSError, ValueError) as error:
            raise ValueError(f"out: cannot write to {str(folder)!r}: {error}") from error
        return folder

    @classmethod
    def open(cls, out: str | os.PathLike[str], net: nn.Module | None = None) -> Run:
        """Return a run that was saved.

        Parameters
        ----------
        out : path
            Its folder.
        net : nn.Module, optional
            The architecture, needed where it is neither a `bnrank.MLP` nor a residual or convolutional network of
        `bnrank.networks`.

        Raises
        ------
        ValueError
            If the folder holds no run, or a damaged one, or ``net`` is needed and missing.
        """
        import xarray as xr

        folder = Path(out)
        path = folder / "networks.safetensors"
        if not path.exists():
            raise ValueError(f"out: {str(folder)!r} holds no run, expected a file networks.safetensors in it")
        try:
            stored = store.load(path, "run")
            parameters, settings = stored.tensors["parameters"], TrainSettings.from_json(stored.about["settings"])
            seconds, plan = stored.about["seconds"], stored.about["network"]
            history, summary = (
                xr.load_dataset(folder / name, engine="h5netcdf") for name in ("history.nc", "summary.nc")
            )
        except Exception as error:
            raise ValueError(f"out: {str(folder)!r} is damaged or holds no run: {error}") from error
        if net is None:
            if plan is None:
                raise ValueError(f"net: the run is of a {settings.network}; give a module of this architecture")
            net = build(plan)
        size = sum(p.numel() for p in net.parameters() if p.requires_grad)
        if size != parameters.shape[1]:
            raise ValueError(f"net: got {size} parameters, expected {parameters.shape[1]} ({settings.network})")
        return cls(history, summary, settings, seconds, net, parameters)


def last_rows(known: xr.DataArray) -> xr.DataArray:
    """Return the last row, over member, where ``known`` (member, step) holds, 0 without one."""
    last = known.sizes["step"] - 1 - known.isel(step=slice(None, None, -1)).argmax("step")
    return last.where(known.any("step"), 0).reset_coords(drop=True)


def summarize(history: xr.Dataset) -> xr.Dataset:
    """Return every member's last recorded values, and the step they belong to, over member."""
    rows = last_rows(abs(history["loss"]) < np.inf)
    series = [name for name, values in history.data_vars.items() if values.dims == ("member", "step")]
    validation.expect(history.sizes["step"], "history", "no recorded step", "at least one")
    summary = history[series].isel(step=rows).reset_coords("step").rename(step="steps").reset_coords("status")
    return summary.drop_vars(["layer", "layer_name", "index"], errors="ignore").assign_attrs(history.attrs)


def _blueprint(net: nn.Module) -> dict[str, object] | None:
    if isinstance(net, MLP):
        return blueprint(net) if by_hand(net) else None
    return blueprint(net) if all(p.requires_grad for p in net.parameters()) else None
