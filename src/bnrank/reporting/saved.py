"""Opening and writing stored results: networks, runs, compressed networks, estimators, watches, and datasets."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from bnrank._core import datasets, identity, sources, store, validation
from bnrank.discovery import Compressed
from bnrank.discovery.compression import open_compressed
from bnrank.discovery.estimators import open_estimator
from bnrank.discovery.estimators.base import BottleneckEstimator
from bnrank.discovery.films import StateVariables, open_state_variables
from bnrank.discovery.films.estimator import KIND as STATE_VARIABLES
from bnrank.measures.comparing import Comparison
from bnrank.networks.files import fill
from bnrank.networks.files import load as load_network
from bnrank.networks.files import write as write_network
from bnrank.networks.replicas import copied
from bnrank.training import Run
from bnrank.training.history import FINISHED_KIND, finishing, is_finished, open_run
from bnrank.training.watching import WatchRecord

RECORDS: dict[str, Callable[..., Any]] = {"watch": WatchRecord, "comparison": Comparison, "dataset": lambda data: data}
"""What makes a result of its dataset, by the kind of the file."""


def load(
    path: str | os.PathLike[str],
    net: nn.Module | None = None,
    *,
    activation: str | float | None = None,
    order: Sequence[str] | None = None,
) -> Any:
    """Return the contents of a file or folder: a network, a run, another result that `bnrank.save` wrote.

    Parameters
    ----------
    path : path
        A folder that `bnrank.train` or `Run.save` wrote, a file that `bnrank.save` wrote, or the safetensors state
        dict of a chain of linear layers.
    net : nn.Module, optional
        The architecture of a stored run that is not a network of bnrank; the original network, if a compression
        replaced only segments of it; or the network whose state dict the file contains. It is copied.
    activation : str or float, optional
        The activation of a foreign state dict, which does not say it: "relu", "linear", a slope, or an elementwise
        function of ``torch.nn.functional`` by its name, such as "tanh". A stored network knows its own.
    order : sequence of str, optional
        Names of the weights of a foreign state dict, first layer first. Needed where the names contain no numbers to
        sort by.

    Returns
    -------
    nn.Module, Run, Finished, Compressed, fitted estimator, WatchRecord, Comparison or xarray.Dataset
        Of a watch its record: history, notes, table and plot, but not the network.

    Raises
    ------
    ValueError
        If the file does not exist, is corrupted or a pickle, or has other contents; the message names it. If ``net`` is
        another network than the stored one; the message names the first difference.

    Examples
    --------
    >>> import tempfile, bnrank
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = bnrank.save(bnrank.MLP([3, 5, 2]), f"{folder}/net.safetensors")
    ...     bnrank.load(path).widths
    [3, 5, 2]
    """
    path = sources.as_path(path, "path")
    validation.optional(validation.kind, net, "net", nn.Module)
    if os.path.isdir(path):  # noqa: PTH112 - no error for names that are too long
        validation.expect(activation is None, "activation", f"{activation!r} for the folder of a run", "none")
        return open_run(path, net if net is None else copied(net), "path")
    stored = store.read(path)
    if stored.kind and stored.kind != "network":
        given = f"{activation!r}, {order} for {path}"
        validation.expect(activation is None and order is None, "activation, order", given, "neither: it has its own")
    if stored.kind == "compressed network":
        return open_compressed(stored, net)
    if stored.kind == "estimator":
        return open_estimator(stored)
    if stored.kind == FINISHED_KIND:
        return finishing("files").open_finished(stored)
    if stored.kind == STATE_VARIABLES:
        return open_state_variables(stored)
    if stored.kind in RECORDS:
        return RECORDS[stored.kind](datasets.dataset_of(stored))
    if net is None:
        return load_network(path, activation, order)
    if stored.kind:
        own = identity.describe(load_network(path), "net", values=False)
        identity.expect_same(own, net, stored.path, values=False)
    net = copied(net)
    fill(net, stored, "path", "net")
    return net


def save(result: object, path: str | os.PathLike[str], *, tag: str | None = None) -> Path:
    """Write a network, a run, a finished or compressed network, or another result; return its path.

    No pickle is written, and the same bits come back.

    Parameters
    ----------
    result : nn.Module, Run, Finished, Compressed, fitted estimator, watch, Comparison or xarray.Dataset
        A dataset of numbers and texts is a profile, for example. A module must be a network of bnrank; write others
        with ``safetensors.torch.save_file(net.state_dict(), path)``.
    path : path
        A folder for a run, else a name ending in ``.safetensors``. An existing one is replaced.
    tag : str, optional
        The version of those parts of the network of a run, or of a partly compressed network, that cannot be
        identified; see `bnrank.training.Save`.

    Raises
    ------
    TypeError, ValueError
        If the result is none of these, a part of its network cannot be identified and has no version, or the path
        cannot be written to.

    Examples
    --------
    >>> import tempfile, bnrank
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = bnrank.save(bnrank.MLP([3, 5, 2]), f"{folder}/net.safetensors")
    ...     path.name, bnrank.load(path).widths
    ('net.safetensors', [3, 5, 2])
    """
    import xarray as xr

    validation.optional(validation.text, tag, "tag")
    if isinstance(result, nn.Module):
        return write_network(result, path, "result")
    if isinstance(result, Run | Compressed):
        return result.save(path, tag)
    if isinstance(result, BottleneckEstimator | StateVariables):
        return result.save(path)
    if is_finished(result):
        return Path(finishing("files").save(result, path))
    if isinstance(result, WatchRecord):
        return datasets.save(path, result.history, "watch")
    if isinstance(result, Comparison):
        return datasets.save(path, result.data, "comparison")
    if isinstance(result, xr.Dataset):
        other = datasets.not_plain(result)
        validation.expect(not other, "result", f"a dataset with {', '.join(other)}", "numbers and texts", TypeError)
        return datasets.save(path, result, "dataset")
    expected = (
        "a network of bnrank, a run, a finished or compressed network, a fitted estimator, a watch, a comparison or a "
        "dataset, such as a profile"
    )
    raise TypeError(f"result: got {validation.describe(result)}, expected {expected}")
