"""What a folder of a sweep holds, while it runs and afterwards."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnrank._core import store, validation
from bnrank._core.content import Part, Table
from bnrank._core.results import Printed
from bnrank._core.sources import DamagedError
from bnrank.training.history import Run
from bnrank.training.sweeping import leases
from bnrank.training.sweeping.axes import shown
from bnrank.training.sweeping.diagrams import phase_diagram
from bnrank.training.sweeping.folder import ARRAYS, FAILED, WAITING, SweepFolder
from bnrank.training.sweeping.packed import unpack
from bnrank.training.sweeping.tabulated import SCALARS, placed
from bnrank.training.sweeping.work import KIND

if TYPE_CHECKING:
    import pandas as pd

RUNNING = "running"
MAX_ROWS = 1000  # shown in notebooks


@dataclass(frozen=True)
class Sweep(Printed):
    """The folder of `bnrank.sweep`, read at any time, also while processes are at work in it.

    Attributes
    ----------
    rows : list of dict
        One per network of all sweeps in the folder, in the order in which they were planned: place in the grid,
        ``status`` ("waiting", "running", or as in `Run`, or "failed"), ``error``, the last recorded ``loss``, ``cost``,
        ``parameter_norm``, ``gradient_norm``, ``balance_residual`` and ``steps``, ``bottleneck_rank`` (of the singular
        values of the weights, as `bnrank.measures.bottlenecks.detect` finds it with its default limits; None if there
        is none), ``seconds`` (wall time of the group of ``company`` networks that was trained together) and ``worker``
        (host and process).

    Examples
    --------
    >>> import tempfile, bnrank
    >>> task = bnrank.tasks.low_rank_map(n=40, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     settings = {"depths": [2], "seeds": [0, 1], "grid": {"width": [8]}, "steps": 3, "processes": 1}
    ...     found = bnrank.sweep(task, **settings, out=folder, progress=False)
    ...     stored = Sweep.open(folder)
    ...     stored.counts, stored.run(depth=2, seed=1).network().widths
    ({'finished': 2}, [20, 8, 20])
    """

    folder: SweepFolder
    rows: list[dict[str, Any]]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Sweep:
        """Return what the folder of a sweep holds now.

        Raises
        ------
        TypeError, ValueError
            If it is not the folder of a sweep.
        """
        folder = SweepFolder.open(path)
        folder.refresh()
        rows: dict[str, dict[str, Any]] = {}
        held = {name for name in leases.names(folder.path) if leases.holder(folder.path, name) is not None}
        for group in folder.groups().values():
            parts = {member.key: part.id for part in folder.parts(group) for member in part.members}
            for member in group.members:
                row = folder.rows.get(member.key)
                if row is None:
                    row = {"status": RUNNING if parts[member.key] in held else WAITING}
                result = {name: value for name, value in row.items() if name not in ("key", "call")}
                rows[member.key] = {"key": member.key, **placed(member.point, result)}
        return cls(folder, list(rows.values()))

    @property
    def path(self) -> Path:
        """The folder."""
        return self.folder.path

    @property
    def counts(self) -> dict[str, int]:
        """Number of networks by status."""
        return dict(Counter(row["status"] for row in self.rows))

    @property
    def seconds_left(self) -> float:
        """Estimate of the wall time that is left: mean time per network times those left, over those at work now.

        NaN if nothing is known yet; infinite if nobody is at work on what is left.
        """
        done = [row for row in self.rows if "seconds" in row]
        at_work = [name for name in leases.names(self.path) if leases.holder(self.path, name) is not None]
        left = sum(row["status"] in (WAITING, RUNNING) for row in self.rows)
        if not left:
            return 0.0
        if not done:
            return float("nan")
        mean = sum(row["seconds"] / row["company"] for row in done) / len(done)
        return left * mean / len(at_work) if at_work else float("inf")

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row per network, without the singular values."""
        import pandas as pd

        hidden = ("weight_singular_values", "arrays", "member")
        found = pd.DataFrame([{k: v for k, v in row.items() if k not in hidden} for row in self.rows])
        return found.reindex(columns=list(dict.fromkeys([*found.columns, *SCALARS])))  # also if none is trained yet

    @property
    def axes(self) -> list[str]:
        """Axes of the grid that have more than one value."""
        names = [name for group in self.folder.groups().values() for name in group.members[0].point]
        return [n for n in dict.fromkeys(names) if len({repr(row.get(n)) for row in self.rows}) > 1]

    def plot(self, x: str = "depth", y: str = "ridge", value: str = "bottleneck_rank", axes: Any = None) -> Any:
        """Draw the mean of a result over two axes of the grid as a heat map; return the axes.

        Parameters
        ----------
        x, y : str
            Axes of the grid.
        value : str
            A result with one number per network.
        axes : matplotlib axes, optional
            Where to draw. Default: new ones.

        Raises
        ------
        ValueError
            If there is no such axis or result.

        Examples
        --------
        >>> import tempfile, bnrank
        >>> task = bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=5, latent=3, rank=2, seed=0)
        >>> grid = {"depths": [2, 4], "ridges": [1e-3, 1e-2, 1e-1], "grid": {"width": [8]}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = bnrank.sweep(task, **grid, steps=100, processes=1, progress=False, out=folder)
        ...     axes = bnrank.Sweep.open(folder).plot("depth", "ridge", "loss")
        >>> axes.get_xlabel()
        'depth'
        """
        return phase_diagram(self.to_frame(), x, y, value).draw(axes)

    def run(self, **point: Any) -> Run:
        """Return the run of the networks at a point of the grid: networks and histories, read when they are needed.

        Parameters
        ----------
        **point
            Values of axes, such as ``depth=4, ridge=1e-3``; they must single out networks that were trained together.

        Raises
        ------
        ValueError
            If no trained network is at the point, or several that were not trained together.
        """
        unknown = [name for name in point if not any(name in row for row in self.rows)]
        validation.expect(not unknown, "point", f"{unknown}", "axes of the sweep")
        wanted = {name: shown(value) for name, value in point.items()}
        rows = [row for row in self.rows if all(row.get(name) == value for name, value in wanted.items())]
        files = {row["arrays"] for row in rows if "arrays" in row}
        counts = dict(Counter(row["status"] for row in rows))
        got = f"{point}, at which are {counts or 'no networks'}"
        validation.expect(len(files) == 1, "point", got, "networks of one group that were trained")
        path = self.folder.path / ARRAYS / files.pop()
        stored = store.load(path, KIND, name="point")
        if stored.about["group"] != path.stem:
            raise DamagedError(f"point: {path} holds networks of another group, {stored.about['group']}")
        run = unpack(stored)
        chosen = [row["member"] for row in rows if "member" in row]
        history, summary = run.history.isel(member=chosen), run.summary.isel(member=chosen)
        return Run(history, summary, run.settings, run.seconds, run.net, run.parameters[chosen])

    def _content(self) -> list[Part]:
        total = len(self.rows)
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self.counts.items()))
        lines: list[Part] = [f"{self.folder.path}: {total} networks: {counts or 'none'}"]
        left = self.seconds_left
        if left not in (0.0, float("inf")) and left == left:
            lines.append(f"about {left:.3g} s left")
        errors = Counter(str(row["error"]).splitlines()[0] for row in self.rows if row["status"] == FAILED)
        lines += [f"{count} failed: {error}" for error, count in errors.most_common(5)]
        shown = [*self.axes, "status", "bottleneck_rank", "loss", "cost", "parameter_norm", "steps"]
        rows = [{name: row.get(name) for name in shown} for row in self.rows[:MAX_ROWS]]
        more = f", the first {MAX_ROWS:,}; .to_frame() has all" if total > MAX_ROWS else ""
        return [*lines, Table(f"Networks{more}", rows, printed=False)]
