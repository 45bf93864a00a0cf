"""A flow on disk while it goes on: one checkpoint file, whole or not there, and a file per network kept."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bnrank._core.files import atomic_path
from bnrank.training.gradient_flow.plan import FlowSettings
from bnrank.training.settings import digest

if TYPE_CHECKING:
    from bnrank.training.gradient_flow.driver import Driver

__all__ = ["Store"]

NAME = "flow.safetensors"
FORMAT = "bnrank flow 1"
INTERVAL = 60.0  # seconds between checkpoints


class Store:
    """The checkpoints of a flow in a folder.

    Parameters
    ----------
    folder : Path
        Where they are.
    plan : FlowSettings
        What the flow is made of, stored with them.
    every : int or None
        Steps between checkpoints; about a minute without it.
    """

    def __init__(self, folder: Path, plan: FlowSettings, every: int | None) -> None:
        self.folder, self.plan, self.every = folder, plan, every
        self._last = time.monotonic()

    def offer(self, driver: Driver) -> None:
        """Write a checkpoint if it is time to."""
        due = driver.step % self.every == 0 if self.every else time.monotonic() - self._last > INTERVAL
        if due:
            self.write(driver)

    def write(self, driver: Driver) -> None:
        """Write a checkpoint; networks that are no longer kept are removed after it.

        Raises
        ------
        ValueError
            If the folder is full or cannot be written to; the checkpoint before stays as it was.
        """
        record = driver.record
        tensors = {
            "theta": driver.theta,
            "velocity": driver.first.velocity,
            "rows": torch.tensor(record.rows, dtype=torch.float64),
            "measured": torch.tensor(sorted(record.values)),
            "spectra": torch.from_numpy(np.array([record.values[k] for k in sorted(record.values)])),
        }
        about = driver.state() | {
            "steps": record.steps,
            "phases": record.phases,
            "stride": record.stride,
            "kept": sorted(record.kept),
        }
        metadata = {"format": FORMAT, "plan": self.plan.to_json(), "about": json.dumps(about)}
        try:
            for row, theta in record.kept.items():
                if not self._network(row).exists():
                    self._save(self._network(row), {"theta": theta}, {"format": FORMAT})
            self._save(self.folder / NAME, tensors, metadata)
            self.forget(set(record.kept))
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"out: cannot write a checkpoint to {str(self.folder)!r}: {error}; the one before, if any, is untouched"
            ) from error
        self._last = time.monotonic()

    def read(self, driver: Driver) -> None:
        """Put a flow where the folder's checkpoint was written, if there is one.

        Raises
        ------
        ValueError
            If it is damaged, or of a flow with other settings.
        """
        path = self.folder / NAME
        if not path.exists():
            self.forget(set())
            return
        remedy = "move it away, or give resume=False to start anew"
        try:
            tensors, metadata = self._load(path)
            differences = self.plan.differences(json.loads(metadata["plan"]))
            about = json.loads(metadata["about"])
            kept = {row: self._load(self._network(row))[0]["theta"] for row in about["kept"]} if not differences else {}
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"out: {str(path)!r} is damaged or no checkpoint ({error}); {remedy}") from error
        if differences:
            raise ValueError(
                f"out: {str(self.folder)!r} holds a flow with other settings ({'; '.join(differences)}); give another "
                "folder, or resume=False to overwrite it"
            )
        record = driver.record
        record.rows = [tuple(row) for row in tensors["rows"].tolist()]
        record.values = dict(zip(tensors["measured"].tolist(), tensors["spectra"].numpy(), strict=True))
        record.steps, record.phases, record.stride, record.kept = (
            about["steps"],
            about["phases"],
            about["stride"],
            kept,
        )
        self.forget(set(kept))
        driver.restore(tensors["theta"], tensors["velocity"], about)

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

    @staticmethod
    def _save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        with atomic_path(path) as temporary:
            save_file(plain, temporary, metadata | {"digest": _digest(plain)})

    @staticmethod
    def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ValueError("not a checkpoint of a flow of this version of bnrank")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _digest(tensors) != metadata["digest"]:
            raise ValueError(f"the contents of {path.name} are not what was written")
        return tensors, metadata


def _digest(tensors: dict[str, Tensor]) -> str:
    return digest(*(tensors[name] for name in sorted(tensors)))
