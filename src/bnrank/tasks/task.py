"""Tasks: training and test data with their loss, and the random streams that they are drawn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnrank._core import validation
from bnrank._core.results import Printed
from bnrank.tasks.losses import LOSSES


class MissingDataError(FileNotFoundError, ValueError):
    """A data file is missing; the message says which, the searched folders and how to obtain it."""


@dataclass(frozen=True)
class Truth:
    """The process that generated the data.

    Attributes
    ----------
    rank : int
        Number of latents that y depends on, the bottleneck rank of the map x -> y.
    latents, latents_test : Tensor
        z, shape (N, latent).
    x_of_latents, y_of_latents : callable
        The generating functions, z -> x and z -> y on (N, latent) tensors.

    Examples
    --------
    >>> import torch, bnrank
    >>> task = bnrank.tasks.low_rank_map(n=50, rank=2, seed=0)
    >>> truth = task.truth                                      # a bnrank.tasks.Truth
    >>> truth.rank, torch.allclose(truth.x_of_latents(truth.latents), task.x)
    (2, True)
    """

    rank: int
    latents: Tensor
    latents_test: Tensor
    x_of_latents: Callable[[Tensor], Tensor]
    y_of_latents: Callable[[Tensor], Tensor]

    def task(self, name: str, settings: Mapping[str, Any], y: Tensor | None = None) -> Task:
        """Return the task of these latents, with other training outputs y where they are given."""
        z, z_test = self.latents, self.latents_test
        return Task(
            self.x_of_latents(z),
            self.y_of_latents(z) if y is None else y,
            self.x_of_latents(z_test) if len(z_test) else None,
            self.y_of_latents(z_test) if len(z_test) else None,
            name=name,
            truth=self,
            settings=settings,
        )


@dataclass(frozen=True)
class Task(Printed):
    """Training and test data, their loss and, where known, the process that generated them.

    Attributes
    ----------
    x, x_test : Tensor
        Inputs, shape (N, d_in), one sample per row.
    y, y_test : Tensor
        Outputs of shape (N, d_out) for "mse"; class indices of shape (N,), int64, for "cross_entropy"; -1 and +1 of
        shape (N, 1), in the precision of x, for "logistic", where (N,) and integers are accepted too.
    loss : "mse", "cross_entropy" or "logistic"
        "mse" is (1/N) sum_i ||f(x_i) - y_i||^2 (docs/theory/notation.md); "logistic" is
        (1/N) sum_i log(1 + exp(-y_i f(x_i))), for two classes and a scalar output (T48).
    name : str
        The name in reports.
    classes : int, optional
        Number of classes, for "cross_entropy"; default: from the labels.
    truth : Truth, optional
        The generating process.
    settings : mapping
        The arguments of the generator, plain values only (stored with every run).
    class_names : tuple of str, optional
        Names of the classes, if labels were text.
    weights : Tensor, optional
        Weights of the training samples, (N,), not negative: the cost is sum_i w_i l_i / sum_i w_i with the losses l_i
        of the samples, so that only ratios of weights matter. `bnrank.train` minimizes it; other functions of a task
        refuse weights. Default: all samples count alike.

    Raises
    ------
    TypeError, ValueError
        If shapes do not match, data are not floating point, empty or not finite, or labels out of range.

    Examples
    --------
    >>> import torch, bnrank
    >>> task = bnrank.tasks.Task(torch.randn(50, 4), torch.randn(50, 2))
    >>> task.d_in, task.d_out, task.loss
    (4, 2, 'mse')
    """

    x: Tensor
    y: Tensor
    x_test: Tensor | None = None
    y_test: Tensor | None = None
    loss: str = "mse"
    name: str = "data"
    classes: int | None = None
    truth: Truth | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    weights: Tensor | None = None

    def __str__(self) -> str:
        test = f" and {len(self.x_test)} test" if self.x_test is not None else ""
        rank = f", rank {self.truth.rank}" if self.truth is not None else ""
        return f"{self.name}: {len(self.x)}{test} samples, {self.d_in} -> {self.d_out}, loss {self.loss!r}{rank}"

    def __post_init__(self) -> None:
        validation.choice(self.loss, "loss", tuple(LOSSES))
        validation.text(self.name, "name")
        validation.expect(isinstance(self.settings, Mapping), "settings", self.settings, "a mapping", TypeError)
        validation.optional(validation.kind, self.truth, "truth", Truth)
        object.__setattr__(self, "classes", validation.optional(validation.integer, self.classes, "classes"))
        if self.class_names is not None:
            ordered = not isinstance(self.class_names, set | frozenset)
            validation.expect(ordered, "class_names", self.class_names, "texts in the order of the classes", TypeError)
            entries = validation.sequence(self.class_names, "class_names", "a sequence of texts")
            names = tuple(str(validation.text(entry, "class_names")) for entry in entries)
            object.__setattr__(self, "class_names", names)
        if (self.x_test is None) != (self.y_test is None):
            raise ValueError("x_test, y_test: got one without the other, expected both or neither")
        flat = self.loss == "mse" and isinstance(self.y, Tensor | np.ndarray) and self.y.ndim == 1
        expected = "(N, d_out); for class indices pass loss='cross_entropy', for one quantity y.reshape(-1, 1)"
        validation.expect(not flat, "y", self.y, expected)
        self._check("")
        if self.weights is not None:
            object.__setattr__(self, "weights", _weights(self.weights, len(self.x)))
        if self.class_names is not None and self.classes is not None:
            named, each = len(self.class_names), f"one for each of {self.classes} classes"
            validation.expect(named == self.classes, "class_names", f"{named} names", each)
        if self.x_test is not None:
            self._check("_test")
            found, shape = tuple(self.x_test.shape[1:]), tuple(self.x.shape[1:])
            validation.expect(found == shape, "x_test", f"samples of shape {found}", f"{shape} as in x")

    def _check(self, suffix: str) -> None:
        """Check and convert the training data (suffix "") or the test data ("_test")."""
        names = f"x{suffix}", f"y{suffix}"
        x = validation.samples(getattr(self, names[0]), names[0], ndim=None)
        y = getattr(self, names[1])
        if self.loss == "mse":
            y = validation.samples(y, names[1], features=self.y.shape[1] if suffix else None)
        elif self.loss == "logistic":
            y = signs(y, names[1]).to(x.dtype)
        else:
            y = validation.classes(y, names[1], self.classes)
            object.__setattr__(self, "classes", self.classes or int(y.max()) + 1)
        found = f"{len(x)} and {len(y)} samples"
        validation.expect(len(x) == len(y), ", ".join(names), found, "the same number in both")
        for name, value in zip(names, (x, y), strict=True):
            object.__setattr__(self, name, value)

    @property
    def n(self) -> int:
        """Number of training samples."""
        return self.x.shape[0]

    @property
    def d_in(self) -> int:
        """Number of input features."""
        return int(self.x[0].numel())

    @property
    def d_out(self) -> int:
        """Number of outputs of a network for this task."""
        return int(self.classes or 0) if self.loss == "cross_entropy" else self.y.shape[1]


def as_task(task: object, *, weighted: bool = False) -> Task:
    """Return a task; a tuple (x, y) or (x, y, loss) becomes one, with the squared error unless a loss is given.

    Raises
    ------
    TypeError, ValueError
        If it is neither, or the data do not fit the loss, or it has weights, unless ``weighted``.
    """
    if isinstance(task, tuple) and len(task) in (2, 3):
        if len(task) == 3 and not isinstance(task[2], str):
            got = f"(x, y, {validation.describe(task[2])})"
            raise TypeError(f"task: got {got}, expected the name of a loss as the third entry")
        return Task(task[0], task[1], loss=task[2] if len(task) == 3 else "mse")
    if not isinstance(task, Task):
        raise TypeError(f"task: got {validation.describe(task)}, expected a bnrank.tasks.Task or a tuple (x, y)")
    expected = "none: only bnrank.train and bnrank.sweep weight samples"
    validation.expect(weighted or task.weights is None, "task", "a task with weights", expected)
    return task


def _weights(weights: object, number: int) -> Tensor:
    """Return weights of samples as float64, (N,), or raise."""
    values = validation.array(weights, "weights", "(N,)", 1).detach().double()
    validation.expect(len(values) == number, "weights", f"{len(values)} values", f"{number}, one for each sample")
    validation.expect(bool((values >= 0).all()), "weights", f"{float(values.min()):g}", "numbers of at least 0")
    validation.expect(bool((values > 0).any()), "weights", "zeros only", "at least one above 0")
    return values


def signs(y: object, name: str) -> Tensor:
    """Return labels of two classes as a float64 column of -1 and +1, shape (N, 1).

    Raises
    ------
    TypeError, ValueError
        If they are not numbers -1 and +1 of shape (N,) or (N, 1).
    """
    if not isinstance(y, Tensor | np.ndarray) or (isinstance(y, np.ndarray) and y.dtype.kind not in "iuf"):
        raise TypeError(f"{name}: got {validation.describe(y)}, expected a torch.Tensor or numpy.ndarray of -1 and +1")
    labels = validation.dense(y, name) if isinstance(y, Tensor) else validation.from_array(y, name)
    validation.expect(not (labels.dtype == torch.bool or labels.is_complex()), name, y, "numbers -1 and +1", TypeError)
    shape = tuple(labels.shape)
    expected = "labels (N,) or (N, 1) for 'logistic', whose output is one number"
    column = shape != () and shape[1:] in ((), (1,)) and labels.numel() > 0
    validation.expect(column, name, f"shape {shape}", expected)
    labels = labels.detach().double().reshape(-1, 1)
    wrong = labels[labels.abs() != 1]
    if len(wrong):
        hint = "; convert labels 0 and 1 to 2 y - 1" if bool(((labels == 0) | (labels == 1)).all()) else ""
        raise ValueError(f"{name}: got labels {wrong[0].item():g}, expected -1 and +1 only, for 'logistic'{hint}")
    return labels


def streams(seed: int, count: int, *key: int) -> list[torch.Generator]:
    """Return ``count`` independent generators derived from one seed; the global generators are not used.

    With one generator per purpose, changing one argument does not affect the other draws. Two calls with the same seed
    and key return the same first generators, whatever ``count``. Data drawn on top of a task with the same seed
    therefore need a ``key`` of their own, of integers.

    The seeds come from ``numpy.random.SeedSequence``, so that a task and a network with the same seed have
    different draws.

    Raises
    ------
    TypeError, ValueError
        If ``seed`` is not an integer of at least 0.
    """
    sequence = np.random.SeedSequence(validation.seed(seed, bits=128), spawn_key=key)
    states = sequence.generate_state(count, np.uint32)
    return [torch.Generator().manual_seed(int(state)) for state in states]


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Return independent N(0, 1) numbers in float64."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    """Return independent numbers, uniform on [0, 1), in float64."""
    return torch.rand(shape, generator=generator, dtype=torch.float64)
