"""The checkpoints of a training, measured after it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from bnrank._core import validation
from bnrank._core.sources import as_path
from bnrank.networks.tensor_files import opened
from bnrank.training.watching import quantities
from bnrank.training.watching.parts import matrices_of
from bnrank.training.watching.records import Measured, Record, dataset

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
STATES = ("optimizer", "scheduler", "scaler", "rng_state", "training_args")


def read_checkpoints(folder: str | os.PathLike[str]) -> Record:
    """Return the ranks and subnormal weights of the checkpoints in a folder, over steps and layers.

    Checkpoints are the .safetensors, .pt, .pth, .bin and .ckpt files in the folder and in its folders, in the order of
    the last number in their path inside the folder, which is taken as the step. No code in them is run.

    Parameters
    ----------
    folder : path
        The folder.

    Returns
    -------
    Record
        ``.history`` over (step, layer) with the quantities of "weights" and "subnormals" of `bnrank.watch`,
        ``.plot()``, ``.to_frame()``.

    Raises
    ------
    TypeError, ValueError
        If there is no checkpoint, two have the same step, or one cannot be read.

    Examples
    --------
    >>> import tempfile, torch
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as name:
    ...     for step in (10, 2):
    ...         save_file({"0.weight": step * torch.eye(3)}, f"{name}/step-{step}.safetensors")
    ...     found = read_checkpoints(name)
    >>> found.history["operator_norm"].sel(layer="0").values.tolist(), found.history.step.values.tolist()
    ([2.0, 10.0], [2, 10])
    """
    root = as_path(folder, "folder")
    validation.expect(root.is_dir(), "folder", f"{str(root)!r}", "a folder of checkpoints")
    files = sorted(p for p in [*root.glob("*"), *root.glob("*/*")] if _is_checkpoint(p))
    validation.expect(files, "folder", f"{str(root)!r}", f"files that end in {', '.join(SUFFIXES)}")
    measured: list[Measured] = []
    layers: dict[str, None] = {}
    for step, path in _numbered(files, root):
        with opened(path, "folder") as entries:
            matrices, _ = matrices_of({entry.name: entry.load() for entry in entries if entry.floating})
        rows: dict[str, dict[str, float]] = {}
        values: dict[str, list[float]] = {}
        for name, matrix in matrices.items():
            found, values[name] = quantities.of_weight(matrix)
            rows[name] = found | quantities.of_entries(matrix)
            layers[name] = None
        measured.append(Measured(step, rows, values))
    return Record(dataset(measured, list(layers), ["weights", "subnormals"], {"title": f"checkpoints in {root.name}"}))


def _is_checkpoint(path: Path) -> bool:
    """Return whether a file can hold weights: not the states that trainers store beside them."""
    return path.suffix in SUFFIXES and path.stem not in STATES and path.is_file()


def _numbered(files: Sequence[Path], root: Path) -> list[tuple[int, Path]]:
    """Return files with the last number of each name, ascending; 0 for a single one without a number."""
    found: dict[int, Path] = {}
    for path in files:
        numbers = re.findall(r"\d+", str(path.relative_to(root).with_suffix("")))
        if not numbers:
            validation.expect(len(files) == 1, "folder", f"{path.name} without a number", "the step in every name")
            return [(0, path)]
        step = int(numbers[-1])
        if step in found:
            raise ValueError(f"folder: got {found[step].name} and {path.name}, both of step {step}, expected one each")
        found[step] = path
    return sorted(found.items())
