"""The checkpoints of a training: written along it, and measured after it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from bnrank._core import validation
from bnrank._core.deadline import Deadline
from bnrank._core.files import prepare_folder, write_atomically, writing
from bnrank._core.sources import as_path
from bnrank.networks.reading import Matrix, listing
from bnrank.training.watching import quantities
from bnrank.training.watching.records import Measured, Record, dataset, shortened

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pth.tar")
_WRITTEN = re.compile(r"step-(\d+)\.safetensors")
_SHARD = re.compile(r"-\d+-of-\d+(\.\w+)?$")
STATES = ("optimizer", "scheduler", "scaler", "rng_state", "training_args")


class Checkpoints:
    """Write the weights of one member at every recorded row: ``bnrank.train(..., record=Record(10, watch=...))``.

    The files are ``step-N.safetensors`` with N the number of steps, state dicts that :func:`read_checkpoints`,
    `bnrank.compare` and `bnrank.profile` read. A resumed run does not write the steps before it again; files of later
    steps, written before it was interrupted, are replaced.

    Parameters
    ----------
    folder : path
        The folder; created if necessary. A run from step 0 does not begin if it holds checkpoints of this name.
    member : int
        Member of the ensemble.
    fresh : bool
        Whether to delete the checkpoints of this name that a run from step 0 finds in the folder.

    Attributes
    ----------
    written : int
        Number of files written.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the folder cannot be written to. When a run begins: if it has no such member,
        or the folder holds checkpoints of another run.

    Examples
    --------
    >>> import tempfile, bnrank
    >>> task = bnrank.tasks.low_rank_map(n=20, d_in=4, d_out=2, latent=2, rank=1, width=5, seed=0)
    >>> with tempfile.TemporaryDirectory() as name:
    ...     record = bnrank.training.Record(10, watch=Checkpoints(name))
    ...     run = bnrank.train(bnrank.MLP([4, 6, 2], seed=0), task, steps=20, record=record, progress=False)
    ...     sorted(path.name for path in Path(name).iterdir())
    ['step-0.safetensors', 'step-10.safetensors', 'step-20.safetensors']
    """

    def __init__(self, folder: str | os.PathLike[str], member: int = 0, *, fresh: bool = False) -> None:
        self.folder, self.member = prepare_folder(folder, "folder"), validation.integer(member, "member", 0)
        self.fresh = validation.flag(fresh, "fresh")
        self.written = 0

    def begin(self, members: int, step: int) -> None:
        """Check that the run has the member and the folder is its own; remove files of steps it has not taken."""
        expected = f"at most {members - 1}: the run has {members} member{'s' * (members > 1)}"
        validation.expect(self.member < members, "member", self.member, expected)
        present = {path: int(number[1]) for path in self.folder.iterdir() if (number := _WRITTEN.fullmatch(path.name))}
        if present and not step and not self.fresh:
            path = min(present, key=present.__getitem__)
            advice = "no checkpoints of another run: take a new folder, or fresh=True to delete them"
            validation.expect(False, "folder", f"{path.name!r} in {str(self.folder)!r}", advice)
        with writing("folder", self.folder):
            for path, taken in present.items():
                if taken > step or not step:
                    path.unlink()

    def observe(self, *, step: int, parameters: Mapping[str, Tensor], member: int, **row: object) -> None:
        """Write a file, if the row is of the member."""
        if member != self.member:
            return
        path = self.folder / f"step-{step}.safetensors"
        with writing("folder", path):
            write_atomically(path, save({name: value.detach().cpu().clone() for name, value in parameters.items()}))
        self.written += 1


def read_checkpoints(folder: str | os.PathLike[str], *, top: int = 0) -> Record:
    """Return the ranks and subnormal weights of the checkpoints in a folder, over steps and layers.

    Checkpoints are the .safetensors, .pt, .pth, .bin, .ckpt and .pth.tar files in the folder and in its folders, in the
    order of their steps: the number after "step" or "checkpoint" in the path inside the folder, else the number after
    "epoch", else the last number that is no decimal. Files of one checkpoint that is split (``-00001-of-00003``) are
    read together. Files without a number, such as last.ckpt, and files that cannot be read are left out and listed in
    ``.notes``. No code in them is run. Kernels of convolutions are read as (out, in, taps) of one group, since tensors
    do not tell more.

    Parameters
    ----------
    folder : path
        The folder.
    top : int
        If positive, also measure the change of each weight since the first checkpoint, and the share of it in so many
        singular values, at most 10. Three checkpoints are then in memory at a time.

    Returns
    -------
    Record
        ``.history`` over (step, layer) with the quantities of "weights" and "subnormals" of `bnrank.watch`,
        ``.plot()``, ``.to_frame()``.

    Raises
    ------
    TypeError, ValueError
        If there is no checkpoint, two have the same step, or none can be read; if there are several, and none has a
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
    return record_of(folder, "folder", top)


def record_of(folder: object, name: str, top: int, deadline: Deadline | None = None) -> Record:
    """Return what :func:`read_checkpoints` does; ``name`` is the argument in errors."""
    root = as_path(folder, name)
    top = validation.integer(top, "top", 0, quantities.LARGEST)
    validation.expect(root.is_dir(), name, f"{str(root)!r}", "a folder of checkpoints")
    files = sorted(p for p in [*root.glob("*"), *root.glob("*/*")] if _is_checkpoint(p))
    validation.expect(files, name, f"{str(root)!r}", f"files that end in {', '.join(SUFFIXES)}")
    numbered, unnumbered = _numbered(files, root, name)
    notes = [f"left out, since its name has no step: {path.relative_to(root)}" for path in unnumbered]
    series, failures = Series(top), []
    for step, paths in numbered:
        if series.measured and deadline is not None and deadline.over():
            notes.append(f"steps {step} to {numbered[-1][0]}: {deadline.missed}")
            break
        try:
            with ExitStack() as stack:
                parts = [stack.enter_context(listing(path, name)) for path in paths]
                series.add(step, [matrix for part in parts for matrix in part.matrices])
        except (TypeError, ValueError, OSError) as error:
            failures.append(error)
            reason = " ".join(str(error).split()).removeprefix(f"{name}: ").replace(str(paths[0]), paths[0].name)
            notes.append(f"left out, since it cannot be read: {paths[0].relative_to(root)} ({reason})")
    if not series.measured:
        raise failures[0]
    return series.record(f"checkpoints in {root.name}", notes)


class Series:
    """Measurements of networks in their order.

    Parameters
    ----------
    top : int
        If positive, changes since the first network are measured, too, and their share in so many singular values. The
        first network and the one before are then in memory.
    """

    def __init__(self, top: int) -> None:
        self.top = top
        self.measured: list[Measured] = []
        self._first: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}
        self._apart: dict[str, None] = {}  # layers of another shape than at first

    def add(
        self, step: int, matrices: Iterable[Matrix], similar: Mapping[str, Mapping[str, float]] | None = None
    ) -> None:
        """Measure the next network; ``similar`` has the similarity of its activations to those of the first."""
        rows: dict[str, dict[str, float]] = {}
        values: dict[str, list[float]] = {}
        for name, blocks, row, values[name] in quantities.of_matrices(matrices, ("weights", "subnormals")):
            rows[name] = row
            if self.top:
                weight = blocks.clone()
                first = self._first.setdefault(name, weight)
                row |= quantities.of_change(weight, first, self._before.get(name, first), self.top)
                self._before[name] = weight
                self._apart |= {} if weight.shape == first.shape else {name: None}
        for name, more in (similar or {}).items():
            rows.setdefault(name, {}).update(more)
        self.measured.append(Measured(step, rows, values))

    def record(self, title: str, notes: Sequence[str], what: Sequence[str] = ()) -> Record:
        """Return the record of all networks; ``what`` names quantities beside those of weights and changes."""
        layers = list(dict.fromkeys(name for m in self.measured for name in m.rows))
        what = ["weights", *(["changes"] if self.top else []), *what, "subnormals"]
        if self._apart:
            reason = "not measured where the shape is not that of the first"
            notes = [*notes, f"change at {shortened(list(self._apart))}: {reason}"]
        attrs = {"title": title, "notes": "\n".join(notes), **({"top": self.top} if self.top else {})}
        return Record(dataset(self.measured, layers, what, attrs))


def _is_checkpoint(path: Path) -> bool:
    """Return whether a file can hold weights: not the states that trainers store beside them."""
    return path.name.endswith(SUFFIXES) and path.name.split(".")[0] not in STATES and path.is_file()


def _numbered(files: Sequence[Path], root: Path, name: str) -> tuple[list[tuple[int, list[Path]]], list[Path]]:
    """Return the files of every step, ascending, and those without a number.

    A single checkpoint without one, in one file or split, has step 0.
    """
    steps: dict[int, list[Path]] = {}
    unnumbered = []
    for path in files:
        step = _step(str(path.relative_to(root).with_suffix("")))
        if step is None:
            unnumbered.append(path)
            continue
        parts = steps.setdefault(step, [])
        if parts and _SHARD.sub("", str(parts[0])) != _SHARD.sub("", str(path)):
            raise ValueError(f"{name}: got {parts[0].name} and {path.name}, both of step {step}, expected one each")
        parts.append(path)
    if not steps:
        single = len({_SHARD.sub("", str(path)) for path in files}) == 1
        validation.expect(single, name, f"{files[0].name} without a number of its step", "the step in every name")
        return [(0, list(files))], []
    return sorted(steps.items()), unnumbered


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
