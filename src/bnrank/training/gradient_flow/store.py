"""The checkpoints of a flow: one file that is replaced, and a file for each network kept."""

from __future__ import annotations

import re
import time
from pathlib import Path

from bnrank._core import store
from bnrank.training import checkpoints
from bnrank.training.gradient_flow.driver import Driver

__all__ = ["Store"]

NAME = "flow.safetensors"
INTERVAL = 60.0  # seconds between checkpoints


class Store:
    """The checkpoints of a flow in a folder.

    Parameters
    ----------
    folder : Path
        Where they are.
    driver : Driver
        The flow.
    every : int or None
        Steps between checkpoints. Default: about a minute.
    """

    def __init__(self, folder: Path, driver: Driver, every: int | None) -> None:
        self.folder, self.driver, self.every = folder, driver, every
        self._last = time.monotonic()

    def offer(self, last: bool) -> None:
        """Write a checkpoint at the end of the flow and when one is due, unless the flow has diverged."""
        step = self.driver.step
        due = step % self.every == 0 if self.every else time.monotonic() - self._last > INTERVAL
        if (last or due) and self.driver.status != "diverged":
            self.write()

    def write(self) -> None:
        """Write a checkpoint; networks that are no longer kept are removed after it.

        Raises
        ------
        ValueError
            If the folder is full or cannot be written to; the previous checkpoint is kept.
        """
        driver, record = self.driver, self.driver.record
        for row, theta in record.kept.items():
            if not self._network(row).exists():
                checkpoints.write(self._network(row), {"theta": theta}, {}, "flow network", driver.plan)
        tensors = {"theta": driver.theta, "velocity": driver.first.velocity} | record.state()
        about = driver.state() | {"phases": record.phases, "stride": record.stride, "kept": sorted(record.kept)}
        checkpoints.write(self.folder / NAME, tensors, about, "flow", driver.plan)
        self.forget(set(record.kept))
        self._last = time.monotonic()

    def read(self) -> None:
        """Continue the flow from the folder's checkpoint, if there is one.

        Raises
        ------
        ValueError
            If it is damaged, or of a flow with other settings.
        """
        driver, record = self.driver, self.driver.record
        stored = checkpoints.read(self.folder / NAME, "flow", driver.plan)
        if stored is None:
            self.forget(set())
            return
        about = stored.about
        try:
            kept = {
                row: store.load(self._network(row), "flow network", name="out").tensors["theta"]
                for row in about["kept"]
            }
        except (ValueError, KeyError) as error:
            raise checkpoints.refused(stored.path, error) from error
        record.load(stored.tensors)
        record.phases, record.stride, record.kept = about["phases"], about["stride"], kept
        self.forget(set(kept))
        driver.restore(stored.tensors["theta"], stored.tensors["velocity"], about)

    def forget(self, kept: set[int]) -> None:
        """Remove the files of networks other than these."""
        for path in self.folder.glob("network-*.safetensors"):
            found = re.fullmatch(r"network-(\d+)", path.stem)
            if found and int(found[1]) not in kept:
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove a flow that is to be overwritten."""
        (self.folder / NAME).unlink(missing_ok=True)
        self.forget(set())

    def _network(self, row: int) -> Path:
        return self.folder / f"network-{row}.safetensors"
