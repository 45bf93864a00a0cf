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
_SHARD = re.compile(r"-\d+-of-\d+(\.\w+)?$")
STATES = ("optimizer", "scheduler", "scaler", "rng_state", "training_args")


def read_checkpoints(folder: str | os.PathLike[str]) -> Record:
    """Return the ranks and subnormal weights of the checkpoints in a folder, over steps and layers.

    Checkpoints are the .safetensors, .pt, .pth, .bin and .ckpt files in the folder and in its folders, in the order of
    their steps: the number after "step" or "checkpoint" in the path inside the folder, else the number after "epoch",
    else the last number that is no decimal. Files of one checkpoint that is split (``-00001-of-00003``) are read
    together. Files without a number, such as last.ckpt, are left out and listed in ``.notes``. No code in them is run.

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
        If there is no checkpoint, two have the same step, or one cannot be read; if there are several, and none has a
        number.

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
    numbered, left_out = _numbered(files, root)
    for step, paths in numbered:
        rows: dict[str, dict[str, float]] = {}
        values: dict[str, list[float]] = {}
        for path in paths:
            with opened(path, "folder") as entries:
                matrices, _ = matrices_of({e.name: e.load() for e in entries if e.floating and not e.reason})
            for name, matrix in matrices.items():
                found, values[name] = quantities.of_weight(matrix)
                rows[name] = found | quantities.of_entries(matrix)
                layers[name] = None
        measured.append(Measured(step, rows, values))
    notes = "\n".join(f"left out, since its name has no step: {path.relative_to(root)}" for path in left_out)
    attrs = {"title": f"checkpoints in {root.name}", "notes": notes}
    return Record(dataset(measured, list(layers), ["weights", "subnormals"], attrs))


def _is_checkpoint(path: Path) -> bool:
    """Return whether a file can hold weights: not the states that trainers store beside them."""
    return path.suffix in SUFFIXES and path.stem not in STATES and path.is_file()


def _numbered(files: Sequence[Path], root: Path) -> tuple[list[tuple[int, list[Path]]], list[Path]]:
    """Return the files of every step, ascending, and those without a number; a single file without one has step 0."""
    found: dict[int, list[Path]] = {}
    left_out = []
    for path in files:
        step = _step(str(path.relative_to(root).with_suffix("")))
        if step is None:
            left_out.append(path)
            continue
        first = found.setdefault(step, [])
        if first and _SHARD.sub("", str(first[0])) != _SHARD.sub("", str(path)):
            raise ValueError(f"folder: got {first[0].name} and {path.name}, both of step {step}, expected one each")
        first.append(path)
    if not found:
        validation.expect(len(files) == 1, "folder", f"{files[0].name} without a number", "the step in every name")
        return [(0, list(files))], []
    return sorted(found.items()), left_out


def _step(name: str) -> int | None:
    """Return the step in a name, or None.

    Examples
    --------
    >>> names = ("epoch=3-step=400-val_loss=0.25", "epoch=05-val_loss=0.25", "model-10", "checkpoint-7/model-1-of-2")
    >>> [_step(name) for name in (*names, "last")]
    [400, 5, 10, 7, None]
    """
    name = _SHARD.sub("", name)
    for pattern in (
        r"(?:steps?|iter|checkpoint|ckpt)[-_=.]?(\d+)",
        r"epoch[-_=.]?(\d+)",
        r"(?<![\d.])(\d+)(?![\d.]*\d)",
    ):
        if numbers := re.findall(pattern, name, re.IGNORECASE):
            return int(numbers[-1])
    return None
