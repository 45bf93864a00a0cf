"""Still pictures of sweeps."""

from typing import Any

from matplotlib.axes import Axes

from bnrank.training import Sweep
from bnrank.training.sweeping import diagrams


def phase_diagram(
    results: Any, x: str = "depth", y: str = "ridge", value: str = "bottleneck_rank", axes: Any = None
) -> Axes:
    """Draw the mean of a result of a sweep over two of its axes.

    Parameters
    ----------
    results : xarray.Dataset, pandas.DataFrame or Sweep
        What `bnrank.sweep` returned, or its folder, opened by `bnrank.Sweep.open`.
    x, y : str
        Axes of the grid.
    value : str
        A result with one number per network.
    axes : Axes, optional
        Where to draw; default: a new figure.

    Returns
    -------
    Axes

    Raises
    ------
    TypeError, ValueError
        If the results are something else, or have no such axis or result.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.low_rank_map(n=40)
    >>> settings = {"ridges": [1e-3, 1e-2], "grid": {"width": [8]}, "steps": 100, "processes": 1, "progress": False}
    >>> phase_diagram(bnrank.sweep(task, depths=[2, 3], **settings), "depth", "ridge", "loss").get_title()
    'loss, mean of 1 network per cell'
    """
    table = results.to_frame() if isinstance(results, Sweep) else results
    drawn: Axes = diagrams.phase_diagram(table, x, y, value).draw(axes)
    return drawn
