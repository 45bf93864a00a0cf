"""From a trained network to a stationary point of C + lambda ||theta||^2, and to a local minimum."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bnrank._core import checksums, store, validation
from bnrank._core.progress import bar
from bnrank._core.results import Printed
from bnrank.measures.critical_points import Stationarity, of_layers
from bnrank.measures.second_order import Array, Evaluation, Problem
from bnrank.measures.subgradients import KINK_RTOL
from bnrank.networks.chain import as_mlp
from bnrank.networks.mlp import MLP
from bnrank.tasks.task import Task, as_task
from bnrank.training.finishing.search import OUT_OF_TIME, Search
from bnrank.training.finishing.stages import SEARCH, Stages, digest
from bnrank.training.finishing.stages import save as write
from bnrank.training.history import FINISHED, FINISHED_KIND, finishing
from bnrank.training.options import Save, check_finishable, folder_of, given


@dataclass(frozen=True)
class Finished(Printed):
    """A network at a stationary point, with what is known about the point.

    Attributes
    ----------
    network : MLP
        The network in float64, of the given widths; neurons that are not needed have zero weights.
    stationarity : Stationarity
        The certificate: residual, kinks, curvature, new neurons.
    loss_before : float
        C + lambda ||theta||^2 of the given network.
    born : int
        Number of neurons added because they lower the loss.
    seconds : float
        Time it took.
    reason : str
        Why it ended: "stationary", "out of time", or what it could not do.
    """

    network: MLP
    stationarity: Stationarity
    loss_before: float
    born: int
    seconds: float
    reason: str

    @property
    def kind(self) -> str:
        """The kind of point; see `bnrank.cost.stationarity`."""
        return self.stationarity.kind

    @property
    def loss(self) -> float:
        """C + lambda ||theta||^2 of the network."""
        return self.stationarity.loss

    def __str__(self) -> str:
        born = f", {self.born} neurons added" if self.born else ""
        return f"{self.stationarity}\nloss before {self.loss_before:.10g}; {self.seconds:.1f} s{born}; {self.reason}"


def finish(
    net: nn.Module,
    task: Task | tuple[Any, ...],
    ridge: float,
    *,
    rtol: float = 1e-8,
    births: bool = True,
    max_minutes: float | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | Save | None = None,
    progress: bool = True,
) -> Finished:
    r"""Return a stationary point of C(f_theta) + lambda ||theta||^2 near a trained network, with a certificate.

    Gradient methods stop at kinks of the loss of a ReLU network. This goes on to a point where 0 is a subgradient:

    1. Neurons whose work others of their layer can do are removed (optimal brain surgeon), while L-BFGS minimizes the
       loss with a smoothed activation.
    2. L-BFGS, preconditioned with a Hessian, follows the minimum as the smoothing is reduced, until kinks can be
       identified. Its coordinates turn with neurons that can be rotated among each other.
    3. Newton's method with the exact Hessian minimizes a model of the loss that is quadratic between kinks. The
       derivatives of the activation at kinks, between its slope and 1, are those that hold preactivations at 0.
    4. In layers with dead neurons, a neuron that would lower the loss is added, and 2. and 3. are repeated.

    Parameters
    ----------
    net : nn.Module
        A trained chain of linear layers with one activation of slope in (-1, 1); never changed.
    task : Task or tuple
        Data and loss: (x, y) for the squared error, or (x, y, loss).
    ridge : float
        lambda > 0, of both weights and biases; the one of training.
    rtol : float
        Largest ||grad C + 2 lambda theta|| / (||grad C|| + ||2 lambda theta||).
    births : bool
        Whether to add neurons in layers with dead ones.
    max_minutes : float, optional
        Time after which the best point so far is returned. Default: no limit.
    seed : int
        Random seed of the search for neurons to add.
    out : path or Save, optional
        A folder for the result and, about every 20 s, the state of the search. The same call goes on from there after
        an interruption or when its time was over, and returns the result if there is one. `bnrank.training.Save` has
        ``resume``.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Finished
        The network and its certificate. Its loss is not above that of ``net``.

    Raises
    ------
    TypeError, ValueError
        If the network is not such a chain, sizes differ, or ridge is not positive: without a penalty there need be no
        minimum at finite norm; or the folder holds a search from another network, with other data or other settings,
        or cannot be written to.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.low_rank_map(n=30, d_in=3, d_out=3, latent=2, rank=1, width=10, seed=0)
    >>> run = bnrank.train(bnrank.MLP([3, 6, 6, 3]), task, ridge=5e-3, steps=300, seed=0, progress=False)
    >>> done = bnrank.finish(run.network(0), task, 5e-3, progress=False)
    >>> done.stationarity.residual < 1e-8, done.loss <= done.loss_before
    (True, True)
    """
    ridge = validation.number(ridge, "ridge", 0.0)
    rtol, births = validation.number(rtol, "rtol", 0.0, strict=True), validation.flag(births, "births")
    limit = validation.optional(validation.number, max_minutes, "max_minutes", 0.0, strict=True)
    task, chain = as_task(task, weighted=True), as_mlp(net)
    check_finishable([ridge], task.loss, chain.widths, chain.slope)
    problem = Problem.of(chain, task, ridge)
    problem.refuse_infinite(problem.layers(chain))
    seed = validation.seed(seed)
    save = None if out is None else given(Save, out, "out")
    options = {"ridge": ridge, "rtol": rtol, "births": births, "seed": seed}
    with folder_of(save) as folder:
        path = None if folder is None else folder / SEARCH
        stages = Stages(path, described(problem, chain, options))
        if folder is not None and save is not None:
            checksums.refuse_foreign(folder, ())
            if not save.resume:
                stages.discard()
                (folder / FINISHED).unlink(missing_ok=True)
            elif (found := _known(folder, stages)) is not None:
                return found
        found = searched(chain, problem, options, limit, stages, progress=progress)
        if folder is not None:
            tensors, about = finishing("files").pack(found)
            write(folder / FINISHED, tensors, about | {"problem": stages.problem}, FINISHED_KIND)
            if OUT_OF_TIME not in found.reason:
                stages.discard()
    return found


def described(problem: Problem, chain: MLP, options: Mapping[str, Any]) -> dict[str, str]:
    """Return what a search depends on, by the names of the arguments."""
    layers = problem.layers(chain)
    found = {"net": digest(chain.widths, chain.slope, chain.bias, *layers)}
    found["task"] = digest(problem.x, problem.y.numpy(), problem.rows, problem.weights, problem.loss)
    return found | {name: repr(value) for name, value in options.items()}


def _known(folder: Path, stages: Stages) -> Finished | None:
    """Return the result in a folder, if there is one with nothing left to do, and otherwise read the search there."""
    differences = stages.read()
    found: Finished | None = None
    if differences is None and (folder / FINISHED).exists():
        stored = store.load(folder / FINISHED, FINISHED_KIND, name="out")
        before = stored.about.get("problem", {})
        differences = [name for name, value in stages.problem.items() if before.get(name) != value]
        found = finishing("files").open_finished(stored)
    if differences:
        name = differences[0]
        value = stages.problem[name] if name not in ("net", "task") else "another one than before"
        expected = (
            f"that of the search in {str(folder)!r}; give another folder, or Save(out, resume=False) to begin anew"
        )
        validation.expect(False, name, value, expected)
    return found if found is not None and OUT_OF_TIME not in found.reason else None


def searched(
    chain: MLP, problem: Problem, options: Mapping[str, Any], limit: float | None, stages: Stages, *, progress: bool
) -> Finished:
    """Return the result of a search, which goes on from the stages that were read."""
    rtol, births, seed = options["rtol"], options["births"], options["seed"]
    with bar(progress, "finishing", 100) as tell:
        search = Search(problem, rtol, limit, seed, births, chain.widths[1:-1], tell, stages)
        layers, reason = search.run(problem.layers(chain))
    network = _padded(layers, chain)
    found = of_layers(problem, problem.layers(network), rtol, KINK_RTOL, births=births, seed=seed)
    same = all(map(np.array_equal, problem.layers(network), problem.layers(chain)))
    before = found.loss if same else Evaluation(problem, problem.layers(chain)).loss  # not apart by rounding
    if found.residual > rtol and reason != OUT_OF_TIME:
        reason += f", at a relative gradient of {found.residual:.1e}"
    seconds = stages.seconds + time.perf_counter() - search.began
    return Finished(network, found, before, search.born, seconds, reason)


def _padded(layers: Sequence[Array], like: MLP) -> MLP:
    """Return an MLP of the given widths with these layers and zeros elsewhere."""
    net = MLP(like.widths, slope=like.slope, bias=like.bias, dtype=torch.float64)
    with torch.no_grad():
        for number, layer in enumerate(layers):
            rows, columns = layer.shape[0], layer.shape[1] - like.bias
            net.weights[number].zero_()
            net.weights[number][:rows, :columns] = torch.from_numpy(layer[:, :columns])
            if like.bias:
                net.biases[number].zero_()
                net.biases[number][:rows] = torch.from_numpy(layer[:, -1])
    return net
