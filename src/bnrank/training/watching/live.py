"""Watching a training from inside its loop."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bnrank._core import validation
from bnrank.measures.usage import LEAST
from bnrank.networks.functional import unwrap
from bnrank.networks.inputs import Inputs
from bnrank.networks.reading import listing
from bnrank.networks.replicas import replica, sandbox
from bnrank.training.watching import callbacks, quantities
from bnrank.training.watching.activations import OUTPUT, Capture
from bnrank.training.watching.collapse import Collapse, CollapseError, Detector, detector_of
from bnrank.training.watching.records import Measured, Record, dataset, shortened
from bnrank.training.watching.writers import writer_of

if TYPE_CHECKING:
    import xarray as xr

WHAT = ("weights", "activations", "subnormals")
EVERY, MAX_ROWS = 100, 512
UNSEEN = (
    "no hook sees what the weight acts on, as in recurrent layers and attention, or the layer was not called, or in "
    "torch.compile, where x= helps"
)
FEW = f"not estimated from fewer than {LEAST} rows, which vary in as many dimensions as they can"


class Watch(Record):
    """A training that is being watched; made by :func:`watch`.

    Attributes
    ----------
    history : xarray.Dataset
        The measurements so far over (step, layer).
    layers : list of str
        Names of the layers, and "output" if activations are measured.
    steps : int
        Steps taken so far.
    collapsed : dict of str to int
        Collapsed layers, with the step since which they are.
    skipped : list of Other
        Parameters that are not measured, each with the reason.

    Examples
    --------
    >>> import bnrank, torch
    >>> net = torch.nn.Linear(3, 2)
    >>> with bnrank.watch(net, every=2, what=["weights"]) as watch:     # a bnrank.training.Watch
    ...     measured = [watch.step() for _ in range(4)]
    >>> measured, watch.steps, watch.history.step.values.tolist()
    ([True, True, False, True], 4, [1, 2, 4])
    """

    steps = 0
    _stride = 1  # between the last two numbers of steps, of a loop that counts them
    _closed = False
    _detector: Detector | None = None

    def __init__(self, net: nn.Module, every: int, what: tuple[str, ...], x: Any, max_rows: int, monitor: Any) -> None:
        self.net, self.every, self.what = net, every, what
        self.x, self.max_rows, self.monitor = x, max_rows, monitor
        self.writers: list[Callable[[Measured], object]] = []
        with listing(net, "net") as weights:
            self.layers = [matrix.name for matrix in weights.matrices] + [OUTPUT] * ("activations" in what)
            self.skipped = list(weights.others)
        others = "; ".join(f"{other.name}: {other.reason}" for other in self.skipped[:3])
        got = f"{type(net).__name__} without a matrix ({others})"
        validation.expect(weights.matrices, "net", got, "one with a matrix")
        self._measured: list[Measured] = []
        self._notes: dict[str, str] = {}  # by subject
        self._warnings: list[str] = []  # those that the next step gives
        self._failures: dict[str, str] = {}  # of hooks, by layer
        self._capture = Capture(max_rows, self._failures)

    @property
    def history(self) -> xr.Dataset:
        """The measurements so far over (step, layer)."""
        notes = [*self._notes.values(), *self._unknown()]
        notes += [f"collapsed since step {step}: {name}" for name, step in self.collapsed.items()]
        attrs = {"title": f"watch of {type(self.net).__name__}", "every": self.every, "notes": "\n".join(notes)}
        return dataset(self._measured, self.layers, self.what, attrs)

    @property
    def collapsed(self) -> dict[str, int]:
        """Collapsed layers, with the step since which they are."""
        return {} if self._detector is None else self._detector.since("collapsed")

    def step(self, number: int | None = None) -> bool:
        """Note that the optimizer has taken a step, measure if it is time, and return whether it was measured.

        The first step is measured, and every multiple of ``every``. An error in a measurement does not end the
        training: measuring stops, with a warning. A writer that fails is left out, also with a warning.

        Parameters
        ----------
        number : int, optional
            Steps taken so far, where the loop counts them, as in a resumed training. Default: one more than before.

        Raises
        ------
        CollapseError
            If representations have collapsed or are not finite, and the watch's `Collapse` has ``stop``. The watch is
            closed then.
        ValueError
            If ``number`` is not larger than at the last call.
        """
        if torch.compiler.is_compiling():  # measurements run uncompiled
            return bool(torch.compiler.disable(self.step)(number))
        number = validation.integer(self.steps + 1 if number is None else number, "number", self.steps + 1)
        due = self._is_due(number)
        self._stride, self.steps = (number - self.steps if self.steps else 1), number
        if self._closed:
            self._note("closed: later steps are not measured, make a new watch for them", warn=True)
        try:
            measured = due and self._advance()
        finally:
            while self._warnings:
                warnings.warn(f"bnrank.watch: {self._warnings.pop(0)}", RuntimeWarning, stacklevel=2)
        self._arm()
        return measured

    def _advance(self) -> bool:
        """Measure, write the measurement and judge it; return whether measuring succeeded."""
        try:
            measured = self._measure()
        except Exception as error:
            self._stop(error)
            return False
        self._measured.append(measured)
        self.layers = list(measured.rows)
        for writer in list(self.writers):
            self._write(writer, measured)
        if self._detector is not None:
            self._judge(self._detector, measured)
        return True

    def _stop(self, error: Exception) -> None:
        """Measure no more after an error."""
        text = f"measuring stopped at step {self.steps}: {type(error).__name__}: {error}; training continues"
        self._note(text, warn=True)
        self.close()

    def _write(self, writer: Callable[[Measured], object], measured: Measured) -> None:
        """Give a measurement to a writer; leave out one that fails."""
        try:
            writer(measured)
        except Exception as error:
            self.writers.remove(writer)
            name = getattr(writer, "__name__", type(writer).__name__)
            text = f"{name} left out since step {self.steps}: {type(error).__name__}: {error}"
            self._note(text, warn=True)

    def _judge(self, detector: Detector, measured: Measured) -> None:
        """Warn of a collapse, or close the watch and stop the training."""
        reason = detector.update(measured.step, measured.rows)
        if detector.blind == max(detector.rule.times, 2):
            text = f"no collapse can be seen: in {detector.blind} measurements up to step {self.steps} no layer had a "
            text += f"dimension; it takes activations of at least {LEAST} samples (x= gives a fixed batch)"
            self._note(text, warn=True)
        if reason and detector.rule.stop:
            self.close()
            raise CollapseError(reason, detector.since("not finite") | detector.since("collapsed"))
        self._warnings += [reason] if reason else []

    def latest(self) -> dict[str, float]:
        """Return the last measurement as ``{"quantity/layer": value}`` without NaN, for loggers; empty before it."""
        return self._measured[-1].flat() if self._measured else {}

    def callback(self, framework: str = "lightning") -> Any:
        """Return a callback that steps this watch in a trainer, logs its measurements, and stops it at a collapse.

        Parameters
        ----------
        framework : "lightning" or "transformers"
            "lightning": a ``Callback`` of PyTorch Lightning, which logs by ``self.log``. "transformers": a
            ``TrainerCallback`` of Hugging Face, which adds the measurements to ``state.log_history``.

        Raises
        ------
        ImportError
            If the framework is not installed.
        """
        return callbacks.make(self, validation.choice(framework, "framework", list(callbacks.FRAMEWORKS)))

    def close(self) -> None:
        """Remove the hooks. Later steps are not measured."""
        self._closed = True
        self._arm()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a Watch holds hooks and files and cannot be copied or pickled; keep its .history")

    def _is_due(self, number: int) -> bool:
        return not self._closed and (not self.steps or number // self.every > self.steps // self.every)

    def _arm(self) -> None:
        """Have hooks in the next forward pass if and only if the next step is measured, without ``x``.

        Modules that are compiled in place have none: they would be compiled, too, in other pieces.
        """
        self._capture.close()
        self._capture = Capture(self.max_rows, self._failures)
        compiled = any(getattr(part, "_compiled_call_impl", None) for part in self.net.modules())
        if self.x is None and "activations" in self.what and self._is_due(self.steps + self._stride) and not compiled:
            with contextlib.suppress(Exception), listing(self.net) as weights:  # the measurement says why
                self._capture.attach(self.net, weights.matrices)

    def _note(self, text: str, *, subject: str = "", warn: bool = False) -> None:
        """Add a remark, the first one on its subject, or with its text; the next step warns of it, too, on request."""
        if (subject or text) not in self._notes:
            self._notes[subject or text] = text
            self._warnings += [text] if warn else []

    def _unknown(self) -> list[str]:
        """Return remarks on the layers without activations in the last measurement, and on those without dimensions."""
        rows = self._measured[-1].rows if self._measured else {}
        unseen = [name for name, row in rows.items() if "units" not in row and name not in self._failures]
        few = [name for name, row in rows.items() if math.isnan(row.get("dimension_95", 0.0))]
        notes = [f"activations not measured at {name}: {reason}" for name, reason in self._failures.items()]
        notes += [f"activations not measured at {shortened(unseen)}: {UNSEEN}"] if 0 < len(unseen) < len(rows) else []
        return notes + ([f"dimensions at {shortened(few)}: {FEW}"] if few else [])

    @torch.no_grad()
    def _measure(self) -> Measured:
        rows: dict[str, dict[str, float]] = {name: {} for name in self.layers}
        values: dict[str, list[float]] = {}
        device = next(itertools.chain(self.net.parameters(), self.net.buffers())).device.type
        with torch.autocast(device, enabled=False), listing(self.net) as weights:
            matrices = weights.matrices if set(self.what) != {"activations"} else ()
            for name, _, row, values[name] in quantities.of_matrices(matrices, self.what):
                rows.setdefault(name, {}).update(row)
            if gone := set(self.layers) - {matrix.name for matrix in weights.matrices} - {OUTPUT}:
                self._note(f"no longer in the network: {shortened(sorted(gone))}")
            for name, row in (self._activations() if "activations" in self.what else {}).items():
                rows.setdefault(name, {}).update(row)
        return Measured(self.steps, rows, values, {} if self.monitor is None else self.monitor.drift())

    def _activations(self) -> dict[str, dict[str, float]]:
        rows = self._capture.rows() if self.x is None else self._on_batch()
        if not rows and "x" not in self._notes:
            self._note("no forward pass was seen: pass x, or call the network and not a compiled copy of it")
        return rows

    def _on_batch(self) -> dict[str, dict[str, float]]:
        """Return the activations of a replica of the network on ``x``, in eval mode; none where it fails."""
        capture = Capture(self.max_rows, {})
        try:
            net, given = replica(self.net), _as_inputs(self.x).clone()
            with listing(net) as weights, sandbox(), capture:
                capture.attach(net, weights.matrices)
                net(*given.positional, **given.named)
        except Exception as error:
            text = f"activations not measured, as the network fails on x: {type(error).__name__}: {error}"
            self._note(text, subject="x", warn=True)  # numbers in the message can change
            return {}
        self._failures |= capture.failures
        return capture.rows()


def _as_inputs(x: Any) -> Inputs:
    """Return a fixed batch as the arguments of a call."""
    given = Inputs((), x) if isinstance(x, Mapping) else Inputs(tuple(x) if isinstance(x, tuple | list) else (x,))
    expected = "a tensor, or a tuple or mapping of arguments with tensors"
    validation.expect(given.tensors, "x", x, expected, TypeError)
    return given


def watch(
    net: nn.Module,
    *,
    every: int = EVERY,
    what: Sequence[str] = WHAT,
    x: Any = None,
    monitor: Any = None,
    writers: Callable[[Measured], object] | str | os.PathLike[str] | Sequence[Any] = (),
    collapse: Collapse | None = None,
    max_rows: int = MAX_ROWS,
) -> Watch:
    """Watch ranks, dimensions and dead units of a network in any training loop, with any optimizer.

    Call ``watch.step()`` after every step of the optimizer, and ``watch.close()`` at the end, or use it as a context
    manager. Training is bitwise identical to training without it: the network, its mode, buffers, gradients and random
    generators are never changed.

    Parameters
    ----------
    net : nn.Module
        The network that is trained.
    every : int
        Steps between measurements. The first step is measured, and every multiple of ``every``.
    what : sequence of str
        "weights": stable rank, effective rank, numbers of singular values with 95 and 99 percent of ||W||_F^2, the
        share of ||W||_F^2 outside the largest tenth of singular values ("tail"), norms, and the 10 largest singular
        values of every matrix that :func:`bnrank.profile` lists, a kernel as (out, in x taps). Of matrices with both
        sides above 1024 only norms and the stable rank, with a lower bound of the operator norm. "activations": the
        dimensions of the centered inputs of every layer, and of the network's output, at 95 and 99 percent of their
        variance (:func:`bnrank.measures.usage.centered_dimension`), and the numbers of dead ones, which are 0 on all
        rows, and of constant ones. "subnormals": the numbers of subnormal weights.
    x : Tensor, tuple or mapping, optional
        A fixed batch on which activations are measured after the step, by a replica of the network in eval mode. Where
        it fails, a RuntimeWarning says so once and weights alone are measured. Default: the batch of the training's own
        forward pass, seen by hooks that are present only before a measured step; the activations are then those before
        the step.
    monitor : object with a method ``drift``, optional
        A `bnrank.invariants.Monitor` that is attached to the optimizer: the drift of conserved quantities is recorded.
    writers : callable, path or sequence of these
        What takes every measurement at once: a function of a `bnrank.training.Measured`, of which ``measured.step`` and
        ``measured.flat()`` are what loggers take, or the path of a CSV file, see `bnrank.training.read_csv`.
    collapse : Collapse, optional
        When representations count as collapsed, and whether this, or values that are NaN or infinite, stops the
        training. Default: neither is checked.
    max_rows : int
        Largest number of rows (samples, and places of images or times of sequences) for the dimensions.

    Returns
    -------
    Watch
        ``.history``, an xarray.Dataset over (step, layer); ``.plot()``, ``.to_frame()``, ``.callback(framework)``.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of range, or the network has no matrix.

    Notes
    -----
    Units of a convolution's input are channels, and rows are samples and places; units of other layers are the last
    dimension. Other parameters, such as biases, are in ``.skipped``; ``.notes`` says of which weights the activations
    cannot be seen, such as the recurrent ones of an LSTM. In a validation pass between two training steps the hooks may
    be present; a pass in training mode replaces what it left. Parts of a network in ``torch.compile`` do not call
    hooks: pass ``x``. Of a weight or an activation that is NaN or infinite somewhere, ranks and dimensions are NaN;
    ``.notes``, the printed watch and its page say since which step. A layer that is replaced or added during the
    training is measured under its name.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> x, y = torch.randn(64, 8), torch.randn(64, 2)
    >>> with watch(net, every=5) as watched:
    ...     for _ in range(10):
    ...         optimizer.zero_grad()
    ...         (net(x) - y).square().mean().backward()
    ...         optimizer.step()
    ...         measured = watched.step()
    >>> watched.history["stable_rank"].sizes, watched.history.step.values.tolist()
    (Frozen({'step': 3, 'layer': 3}), [1, 5, 10])
    """
    every, max_rows = validation.integer(every, "every"), validation.integer(max_rows, "max_rows", 2)
    what = [validation.choice(name, "what", WHAT) for name in validation.sequence(what, "what", f"some of {WHAT}")]
    validation.expect(what, "what", "nothing", f"some of {WHAT}")
    drifts = monitor is None or (callable(getattr(monitor, "drift", None)) and not isinstance(monitor, type))
    validation.expect(drifts, "monitor", monitor, "an object with drift(), as bnrank.invariants.Monitor has", TypeError)
    if x is not None:
        _as_inputs(x)
    watched = Watch(unwrap(net), every, tuple(dict.fromkeys(what)), x, max_rows, monitor)
    if collapse is not None:
        watched._detector = detector_of(collapse, watched.what, watched.layers)
    alone = callable(writers) or isinstance(writers, str | os.PathLike)
    given = [writers] if alone else validation.sequence(writers, "writers")
    watched.writers += [writer_of(writer, watched.what) for writer in given]
    watched._arm()
    return watched
