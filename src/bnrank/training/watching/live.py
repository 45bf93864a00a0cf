"""Watching a training from inside its loop."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bnrank._core import validation
from bnrank.networks.functional import uncompiled, unwrap
from bnrank.training.watching import callbacks, quantities
from bnrank.training.watching.capturing import Capture, call, probing, shapes
from bnrank.training.watching.collapse import Collapse, CollapseError, Detector
from bnrank.training.watching.divergence import shortened
from bnrank.training.watching.parts import OUTPUT, parts_of, without_activations, without_dimensions
from bnrank.training.watching.records import Measured, Record, dataset
from bnrank.training.watching.writers import CSVWriter, Writer

if TYPE_CHECKING:
    import xarray as xr

WHAT = ("weights", "activations", "subnormals")
EVERY, MAX_ROWS = 100, 512


@runtime_checkable
class Drifting(Protocol):
    """A monitor of conserved quantities, such as :class:`bnrank.invariants.Monitor`."""

    def drift(self) -> dict[str, float]:
        """Return the relative drift of every quantity since the first row."""
        ...


class Watch(Record):
    """A training that is being watched; made by :func:`watch`.

    Attributes
    ----------
    history : xarray.Dataset
        The measurements so far over (step, layer).
    steps : int
        Steps taken so far.
    collapsed : dict of str to int
        Collapsed layers, with the step since which they are.
    skipped : list of Skipped
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

    def __init__(
        self,
        net: nn.Module,
        every: int,
        what: Sequence[str],
        x: Any,
        monitor: Drifting | None,
        writers: Sequence[Writer],
        collapse: Collapse | None,
        max_rows: int,
    ) -> None:
        self.net, self.every, self.what, self.x = unwrap(net), every, tuple(what), x
        self.monitor, self.writers = monitor, list(writers)
        self.parts, self.skipped = parts_of(self.net)
        self.steps, self._stride = 0, 1
        self._detector = None if collapse is None else Detector(collapse)
        self._measured: list[Measured] = []
        self._capture = Capture(self.net, self.parts, max_rows)
        self._notes: list[str] = []
        self._closed, self._told = False, False
        self._missing: list[str] = []
        if collapse is not None and collapse.layers is not None:
            unknown = [name for name in collapse.layers if name not in self.layers]
            validation.expect(not unknown, "collapse", f"layers {unknown}", f"some of {self.layers}")
        with _naming_writers():
            for writer in self.writers:
                writer.begin(self.layers, self.columns)
        self._arm()

    @property
    def layers(self) -> list[str]:
        """Names of the layers, and "output" if activations are measured."""
        return [part.name for part in self.parts] + ([OUTPUT] if "activations" in self.what else [])

    @property
    def columns(self) -> list[str]:
        """Names of the quantities per layer."""
        return [name for part in self.what for name in quantities.QUANTITIES[part]]

    @property
    def history(self) -> xr.Dataset:
        """The measurements so far over (step, layer)."""
        seen = [{name for name, row in m.rows.items() if "units" in row} for m in self._measured]
        said = any(note.startswith(f"activations not measured, {OUTPUT}: ") for note in self._notes)
        notes = self._notes + without_activations(self.parts, seen, output=not said)
        notes += without_dimensions(m.rows for m in self._measured)
        notes += [f"collapsed since step {step}: {name}" for name, step in self.collapsed.items()]
        attrs = {"title": f"watch of {type(self.net).__name__}", "every": self.every, "notes": "\n".join(notes)}
        return dataset(self._measured, self.layers, self.what, attrs)

    @property
    def collapsed(self) -> dict[str, int]:
        """Collapsed layers, with the step since which they are."""
        return {} if self._detector is None else dict(self._detector.collapsed)

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
        measured, reason = self.advance(number)
        if reason:
            self.close()
            raise CollapseError(reason, None if self._detector is None else self._detector.found)
        return measured

    def advance(self, number: int | None = None) -> tuple[bool, str]:
        """Count a step and measure if it is time; return whether, and why the training should stop, or an empty text.

        This is :meth:`step` for callbacks: it raises nothing when representations collapse.
        """
        number = self.steps + 1 if number is None else validation.integer(number, "number")
        expected = "a larger number at every call"
        validation.expect(number > self.steps, "number", f"{number} after {self.steps}", expected)
        due = self._is_due(number)
        self._stride, self.steps = (number - self.steps if self.steps else 1), number
        if self._closed:
            self.warn_if_closed()
            return False, ""
        if not due:
            self._arm()
            return False, ""
        try:
            found = uncompiled(self._measure)()
        except Exception as error:
            text = f"measuring stopped at step {number}: {type(error).__name__}: {error}"
            self._remark(text)
            self.close()
            self._told = True
            warnings.warn(f"bnrank.watch: {text}; training continues", RuntimeWarning, stacklevel=3)
            return False, ""
        self._measured.append(found)
        for writer in list(self.writers):
            with self._dropping(writer):
                writer.write(found)
        self._arm()
        return True, self._judge(found)

    @contextlib.contextmanager
    def _dropping(self, writer: Writer) -> Iterator[None]:
        """Go on without a writer that fails, with a warning."""
        try:
            yield
        except Exception as error:
            self.writers.remove(writer)
            text = f"{type(writer).__name__} left out since step {self.steps}: {type(error).__name__}: {error}"
            self._remark(text)
            warnings.warn(f"bnrank.watch: {text}; measuring continues", RuntimeWarning, stacklevel=5)
            with contextlib.suppress(Exception):
                writer.close()

    def _judge(self, found: Measured) -> str:
        """Return why the training should stop, or an empty text; warn of a collapse that does not stop it."""
        if self._detector is None:
            return ""
        new = self._detector.update(found.step, found.rows)
        if text := self._detector.blindness(found.step):
            warnings.warn(f"bnrank.watch: {text}", RuntimeWarning, stacklevel=4)
        if not new:
            return ""
        text = self._detector.reason(found.step, new)
        if self._detector.rule.stop:
            return text
        warnings.warn(f"bnrank.watch: {text}", RuntimeWarning, stacklevel=4)
        return ""

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
        validation.choice(framework, "framework", callbacks.FRAMEWORKS)
        return callbacks.make(self, framework)

    def close(self) -> None:
        """Remove the hooks and close the writers. Does nothing the second time."""
        if not self._closed:
            self._closed = True
            self._capture.disarm()
            for writer in list(self.writers):
                with self._dropping(writer):
                    writer.close()

    def warn_if_closed(self) -> None:
        """Warn once, where the watch is closed, that a training which goes on is not measured."""
        if self._closed and not self._told:
            self._told = True
            when = f"after the measurement of step {self._measured[-1].step}" if self._measured else "without any"
            text = f"closed {when}: later steps are not measured, make a new watch for them"
            self._remark(text)
            warnings.warn(f"bnrank.watch: {text}", RuntimeWarning, stacklevel=4)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a Watch holds hooks and files and cannot be copied or pickled; keep its .history")

    def _is_due(self, number: int) -> bool:
        return not self.steps or number // self.every > self.steps // self.every

    def _arm(self) -> None:
        """Have hooks in the next forward pass if and only if the next step is measured, without ``x``.

        Modules that are compiled in place have none: they would be compiled, too, in other pieces.
        """
        wanted = self.x is None and "activations" in self.what and self._is_due(self.steps + self._stride)
        if wanted and not any(getattr(part, "_compiled_call_impl", None) for part in self.net.modules()):
            if not self._capture.armed:
                with contextlib.suppress(Exception):  # said at the measurement
                    self._follow()
                self._capture.arm()
        else:
            self._capture.disarm()

    def _fails(self, error: Exception) -> None:
        """Warn once that the network fails on ``x``; raise where nothing else is measured."""
        self._capture.seen = {}
        text = f"x: got {shapes(self.x)}, on which the network fails: {type(error).__name__}: {error}"
        if set(self.what) == {"activations"}:
            raise ValueError(text) from error
        text = f"activations not measured, {text}"
        kind = text.partition(f": {type(error).__name__}: ")[0]  # numbers in the message can change
        if not any(note.startswith(kind) for note in self._notes):
            self._remark(text)
            warnings.warn(f"bnrank.watch: {text}; training continues", RuntimeWarning, stacklevel=7)

    def _follow(self) -> None:
        """Look up the layers again by their names, and remark on those that were replaced or added."""
        found = {part.name: part for part in parts_of(self.net)[0]}
        names = [part.name for part in self.parts]
        replaced = [
            part.name for part in self.parts if part.name in found and found[part.name].module is not part.module
        ]
        if replaced:
            self._remark(f"replaced by another layer by step {self.steps}: {shortened(replaced)}")
        if added := [name for name in found if name not in names]:
            self._remark(f"not measured, since added to the network during the training: {shortened(added)}")
        self._missing = [name for name in names if name not in found]
        self.parts = [found.get(part.name, part) for part in self.parts]
        self._capture.take(self.parts)

    def _remark(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    @torch.no_grad()
    def _measure(self) -> Measured:
        rows: dict[str, dict[str, float]] = {name: {} for name in self.layers}
        values: dict[str, list[float]] = {}
        own = dict(self.net.named_parameters())
        kinds = sorted({p.device.type for p in own.values()})
        with _without_autocast(kinds):
            self._follow()
            if "activations" in self.what:
                self._activations(rows)
            for name in self._missing:
                self._remark(f"{name}: its weight is no longer in the network")
            present = [part for part in self.parts if part.name not in self._missing]
            for part in present if set(self.what) != {"activations"} else ():
                blocks = part.matrix.blocks()
                if "weights" in self.what:
                    found, values[part.name] = quantities.of_weight(blocks)
                    rows[part.name] |= found
                if "subnormals" in self.what:
                    rows[part.name] |= quantities.of_entries(blocks)
        drift = {} if self.monitor is None else self.monitor.drift()
        return Measured(self.steps, rows, values, drift)

    def _activations(self, rows: dict[str, dict[str, float]]) -> None:
        failed = False
        if self.x is not None:
            self._capture.arm()
            try:
                with probing(self.net):
                    call(self.net, self.x)
            except Exception as error:
                failed = True
                self._fails(error)
            finally:
                self._capture.disarm()
        for name, seen in self._capture.seen.items():
            rows[name] |= seen.measured()
        self._capture.disarm()
        for failure in self._capture.failures:
            self._remark(f"activations not measured, {failure}")
        if not self._capture.seen and not failed:
            self._remark(
                "no forward pass was seen: pass x, or call the network and not a compiled or traced copy of it"
            )


def watch(
    net: nn.Module,
    *,
    every: int = EVERY,
    what: Sequence[str] = WHAT,
    x: Any = None,
    monitor: Drifting | None = None,
    writers: Writer | str | os.PathLike[str] | Sequence[Any] = (),
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
        The network that is trained. In DistributedDataParallel, the module inside.
    every : int
        Steps between measurements. The first step is measured, and every multiple of ``every``.
    what : sequence of str
        "weights": stable rank, effective rank, numbers of singular values with 95 and 99 percent of ||W||_F^2, the
        share of ||W||_F^2 outside the largest tenth of singular values ("tail"), norms, and the 10 largest singular
        values of every parameter with at least two dimensions, as a matrix (out, in x kernel); of one that is
        parametrized, weight-normalized or pruned, those of the weight that the layer uses. Of matrices with both sides
        above 1024 only norms and the stable rank, with a lower bound of the operator norm. "activations": the
        dimensions of the centered inputs of every layer, and of the network's output, at 95 and 99 percent of their
        variance (:func:`bnrank.measures.usage.centered_dimension`), and the numbers of dead ones, which are 0 on all
        rows, and of constant ones. "subnormals": the numbers of subnormal weights.
    x : Tensor, tuple or mapping, optional
        A fixed batch on which activations are measured, in eval mode, after the step. Where the network fails on it, a
        RuntimeWarning says so once and weights alone are measured. Default: the batch of the training's own forward
        pass, seen by hooks that are present only before a measured step; the activations are then those before the
        step.
    monitor : object with a method ``drift``, optional
        A `bnrank.invariants.Monitor` that is attached to the optimizer: the drift of conserved quantities is recorded.
    writers : Writer, path or sequence of these
        Where measurements are written at once: `CSVWriter`, `TensorBoardWriter`, `WandbWriter`, `MLflowWriter` of
        :mod:`bnrank.training`, one of your own (`Writer`), or a path, for a CSV file.
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
        If an argument is out of range, or the network has no parameter with at least two dimensions.

    Notes
    -----
    Units of a convolution's input are channels, and rows are samples and places; units of other layers are the last
    dimension. Layers without a matrix (normalization) and biases are in ``.skipped``; ``.notes`` says of which weights
    the activations cannot be seen, such as the recurrent ones of an LSTM, and why. In a validation pass between two
    training steps the hooks may be present; a pass in training mode replaces what it left. Parts of a network in
    ``torch.compile`` do not call hooks: pass ``x``, which runs the network uncompiled. Of a weight or an activation
    that is NaN or infinite somewhere, ranks and dimensions are NaN; ``.notes``, the printed watch and its page say
    since which step. A layer that is replaced during the training is measured under its name, one that is added is not;
    ``.notes`` names both.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> x, y = torch.randn(64, 8), torch.randn(64, 2)
    >>> with watch(net, every=5) as found:
    ...     for _ in range(10):
    ...         optimizer.zero_grad()
    ...         (net(x) - y).square().mean().backward()
    ...         optimizer.step()
    ...         _ = found.step()
    >>> found.history["stable_rank"].sizes, found.history.step.values.tolist()
    (Frozen({'step': 3, 'layer': 3}), [1, 5, 10])
    """
    every, max_rows = validation.integer(every, "every"), validation.integer(max_rows, "max_rows", 2)
    what = [validation.choice(name, "what", WHAT) for name in validation.sequence(what, "what", f"some of {WHAT}")]
    validation.expect(what, "what", "nothing", f"some of {WHAT}")
    if monitor is not None and (isinstance(monitor, type) or not isinstance(monitor, Drifting)):
        expected = "an object with a method drift, such as bnrank.invariants.Monitor"
        raise TypeError(f"monitor: got {validation.describe(monitor)}, expected {expected}")
    validation.optional(validation.kind, collapse, "collapse", Collapse)
    if collapse is not None:
        validation.expect("activations" in what, "collapse", f"what={what}", "'activations' in what")
    if x is not None:
        _check_batch(x)
    given = [writers] if isinstance(writers, str | os.PathLike | Writer) else validation.sequence(writers, "writers")
    with _naming_writers():
        made = [CSVWriter(w) if isinstance(w, str | os.PathLike) else w for w in given]
    for writer in made:
        validation.expect(isinstance(writer, Writer), "writers", writer, "a Writer or a path", TypeError)
    network = unwrap(net)
    found, skipped = parts_of(network)
    if not found:
        what = "no parameter with at least two dimensions"
        others = [f"{part.name}: {part.reason}" for part in skipped if part.reason.startswith("entries of type")]
        if others:
            what += f" and real floating-point entries of at least 16 bits ({', '.join(others[:3])})"
        raise ValueError(f"net: {type(network).__name__} has {what}, expected one")
    return Watch(network, every, list(dict.fromkeys(what)), x, monitor, made, collapse, max_rows)


@contextlib.contextmanager
def _naming_writers() -> Iterator[None]:
    """Name ``writers`` in the errors of a writer about its path."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if not str(error).startswith("path: "):
            raise
        raise type(error)(f"writers: {str(error).removeprefix('path: ')}") from error


def _check_batch(x: Any) -> None:
    entries = list(x.values()) if isinstance(x, dict) else list(x) if isinstance(x, tuple | list) else [x]
    tensors = [entry for entry in entries if isinstance(entry, Tensor)]
    validation.expect(tensors, "x", x, "a tensor, or a tuple or dict of arguments with tensors", TypeError)


def _dense(weight: Tensor) -> Tensor:
    return weight.detach() if weight.layout is torch.strided else weight.detach().to_dense()


def _without_autocast(kinds: Sequence[str]) -> Any:
    stack = contextlib.ExitStack()
    for kind in kinds:
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack
