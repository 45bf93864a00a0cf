"""Options of `bnrank.train` and `bnrank.flow`, validated on construction."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from torch import Tensor

from bnrank._core import sources, validation
from bnrank._core.files import one_writer, prepare_folder

METHODS = ("rk45", "dop853", "heun", "lsoda", "bdf", "euler")
ADAPTIVE = METHODS[:3]  # explicit, with error control
TIMES = ("t", "arc")
MAX_HANDOVER_RTOL = 0.1  # beyond this relative difference the gradient at the outputs is not close to G
T = TypeVar("T")


def given(kind: type[T], value: Any, name: str) -> T:
    """Return ``value`` if it is of this kind of options, otherwise options with ``value`` as their first field."""
    if isinstance(value, kind):
        return value
    try:
        return kind(value)  # type: ignore[call-arg]
    except (TypeError, ValueError) as error:
        if str(error).startswith(f"{name}: "):
            raise
        raise type(error)(f"{name}: {error}, or a bnrank.training.{kind.__name__}") from error


def _keep(options: object, **values: Any) -> None:
    """Set fields to their checked values."""
    for name, value in values.items():
        object.__setattr__(options, name, value)


def _rates(value: Any) -> float | tuple[float, ...]:
    """Return one step size or one per member, as they are given."""
    if not isinstance(value, list | tuple | np.ndarray | Tensor):
        return validation.number(value, "lr", 0.0, strict=True)
    value = validation.numbers(value, "lr", "a number or one per member").tolist() if _is_array(value) else value
    if not isinstance(value, list | tuple):
        return validation.number(value, "lr", 0.0, strict=True)
    validation.expect(len(value), "lr", "no values", "one number or one per member")
    return tuple(validation.number(v, f"lr[{i}]", 0.0, strict=True) for i, v in enumerate(value))


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | Tensor)


@dataclass(frozen=True)
class GradientDescent:
    """Options of gradient descent.

    Attributes
    ----------
    lr : float or sequence
        Step size, one number or one per member.
    schedule : {"constant", "cosine", "linear", "normalized"}
        The step size as a function of the step. "cosine" and "linear" decrease to 0 over ``steps``. "normalized" is
        lr ||theta|| / ||gradient||, gradient flow in a reparametrized time in which plateaus are short (T35).
    norm_power : float
        Steps are divided by ||theta||^norm_power, biases included; not with "normalized". At L - 2, where L is the
        depth of a bias-free network, ``lr`` is a step in the time s of T35, ds = ||theta||^(L - 2) dt, in which the
        plateau around the saddle at the origin takes a number of steps that grows only like log(1 / initial scale).
        Bantzis2025 uses ``GradientDescent(10, norm_power=4)`` at depth 6. Training raises ValueError where such a step
        exceeds the range of the type of theta.

    Examples
    --------
    >>> import bnrank
    >>> task, net = bnrank.tasks.low_rank_map(n=40, seed=0), bnrank.MLP([20, 8, 20])
    >>> descent = bnrank.training.GradientDescent(lr=0.05)
    >>> run = bnrank.train(net, task, optimizer=descent, steps=5, record=1, seed=0, progress=False)
    >>> bool((run.history.loss.diff("step") < 0).all())
    True
    """

    lr: float | Sequence[float] = 1e-2
    schedule: str = "constant"
    norm_power: float = 0.0

    def __post_init__(self) -> None:
        power = validation.number(self.norm_power, "norm_power", 0.0)
        _keep(self, lr=_rates(self.lr), norm_power=power)
        validation.choice(self.schedule, "schedule", ("constant", "cosine", "linear", "normalized"))
        alone = not power or self.schedule != "normalized"
        validation.expect(alone, "norm_power", f"{power:g}", "0 for the schedule 'normalized'")


@dataclass(frozen=True)
class Adam:
    """Options of Adam (Kingma and Ba 2015; beta = 0.9, 0.999, eps = 1e-8) with coupled L2, not AdamW.

    Attributes
    ----------
    lr : float or sequence
        Step size, one number or one per member.
    schedule : {"constant", "cosine", "linear"}
        The step size as a function of the step. "cosine" and "linear" decrease to 0 over ``steps``.

    Examples
    --------
    >>> import bnrank
    >>> adam = bnrank.training.Adam(lr=[1e-3, 1e-2], schedule="cosine")     # one step size per member
    >>> task = bnrank.tasks.low_rank_map(n=40, seed=0)
    >>> run = bnrank.train(bnrank.MLP([20, 8, 20]), task, optimizer=adam, steps=5, seed=0, progress=False)
    >>> run.history.lr.values.tolist()
    [0.001, 0.01]
    """

    lr: float | Sequence[float] = 3e-3
    schedule: str = "constant"

    def __post_init__(self) -> None:
        _keep(self, lr=_rates(self.lr))
        validation.choice(self.schedule, "schedule", ("constant", "cosine", "linear"))


@dataclass(frozen=True)
class Stop:
    """Stopping criteria of a training run.

    Attributes
    ----------
    steps : int
        Number of evaluations of cost and gradient. Each is an update of Adam and gradient descent, or a line search
        trial of L-BFGS. 0 only records the initial state.
    gradient_norm, balance_residual : float
        Tolerances. A member stops as "converged" at the first recorded step at which its gradient norm is below
        ``gradient_norm`` and its balance residual (T14) below ``balance_residual``; 0 disables a criterion.

    Examples
    --------
    >>> import bnrank
    >>> stop = bnrank.training.Stop(steps=500, gradient_norm=1e3)       # reached at once
    >>> task = bnrank.tasks.low_rank_map(n=40, seed=0)
    >>> run = bnrank.train(bnrank.MLP([20, 8, 20]), task, steps=stop, seed=0, progress=False)
    >>> run.summary.status.item(), run.summary.steps.item()
    ('converged', 0)
    """

    steps: int = 5000
    gradient_norm: float = 0.0
    balance_residual: float = 0.0

    def __post_init__(self) -> None:
        norm = validation.number(self.gradient_norm, "gradient_norm", 0.0)
        residual = validation.number(self.balance_residual, "balance_residual", 0.0)
        _keep(self, steps=validation.integer(self.steps, "steps", 0), gradient_norm=norm, balance_residual=residual)


class Watcher(Protocol):
    """An observer that `bnrank.train` and `bnrank.flow` call at every recorded row.

    A watcher does not change a run, its settings or its checkpoints, so a run can be resumed with another watcher or
    none. Rows recorded before a resume are not shown again.

    If it also has a method ``begin(members, step)``, that is called once before the first row, with the size of the
    ensemble and the number of steps taken before a resume. An exception raised there ends the call.

    Examples
    --------
    >>> import bnrank
    >>> class Steps(list):
    ...     def observe(self, *, step, **others): self.append(step)
    >>> task, record = bnrank.tasks.low_rank_map(n=40), bnrank.training.Record(every=2, watch=Steps())
    >>> run = bnrank.train(bnrank.MLP([20, 8, 20]), task, steps=4, record=record, seed=0, progress=False)
    >>> record.watch
    [0, 2, 4]
    """

    def observe(
        self,
        *,
        step: int,
        time: float | None,
        parameters: Mapping[str, Tensor],
        gradient: Mapping[str, Tensor] | None,
        lr: float | None,
        ridge: float,
        member: int,
    ) -> None:
        """Receive one member at one recorded step.

        An exception raised here ends the run, after writing a checkpoint if the run has a folder.

        Parameters
        ----------
        step : int
            Number of steps taken so far.
        time : float or None
            The sum of the step sizes so far for gradient descent, t for a flow, and None for other optimizers.
        parameters : mapping
            The trained parameters by their names in ``net.named_parameters()``. They are read-only views and valid only
            during the call; clone them to keep them.
        gradient : mapping or None
            dC/dtheta by the same names: the gradient of the data cost, without the ridge. On the skipped plateau of a
            flow, the gradient of L0. None if the full gradient is not known: with mini-batches, in all rows except the
            last row of ``train``.
        lr : float or None
            The size of the next step of gradient descent and Adam; None for L-BFGS and for a flow.
        ridge : float
            lambda of this member; 0 for a flow.
        member : int
            Index of the member in the ensemble.
        """


@dataclass(frozen=True)
class Record:
    """Options for recording the history.

    Attributes
    ----------
    every : int, optional
        Steps between rows. Default: 100 for `bnrank.train`, 1 for `bnrank.flow`.
    top_k : int
        Number of singular values per layer.
    spectra_every : int, optional
        Steps between rows with singular values, a multiple of ``every``; other rows hold NaN. Default: every row; in a
        flow, every tenth row if both dimensions of a weight matrix exceed 128.
    watch : object with a method ``observe``, optional
        Called at every row; see :class:`bnrank.training.Watcher`. It does not change the run.

    Examples
    --------
    >>> import bnrank
    >>> record = bnrank.training.Record(every=2, top_k=3)
    >>> task = bnrank.tasks.low_rank_map(n=40, seed=0)
    >>> run = bnrank.train(bnrank.MLP([20, 8, 20]), task, steps=4, record=record, seed=0, progress=False)
    >>> run.history.step.values.tolist(), run.history.sizes["index"]
    ([0, 2, 4], 3)
    """

    every: int | None = None
    top_k: int = 10
    spectra_every: int | None = None
    watch: Watcher | None = None

    def __post_init__(self) -> None:
        every = validation.optional(validation.integer, self.every, "every")
        spectra_every = validation.optional(validation.integer, self.spectra_every, "spectra_every")
        _keep(self, every=every, spectra_every=spectra_every, top_k=validation.integer(self.top_k, "top_k"))
        observes = not isinstance(self.watch, type) and callable(getattr(self.watch, "observe", None))
        if self.watch is not None and not observes:
            raise TypeError(f"watch: got {validation.describe(self.watch)}, expected an object with a method observe")

    def rows(self, every: int, rows: int = 1) -> tuple[int, int]:
        """Return the steps between rows and between rows with singular values.

        ``every`` is the default of the first; the default of the second is ``rows`` rows.
        """
        every = every if self.every is None else self.every
        spectra_every = rows * every if self.spectra_every is None else self.spectra_every
        multiple = spectra_every % every == 0
        validation.expect(multiple, "spectra_every", f"{spectra_every}", f"a multiple of every, {every}")
        return every, spectra_every


@dataclass(frozen=True)
class Finish:
    """Options of finishing the members of a run: `bnrank.finish` after the last step.

    Attributes
    ----------
    rtol : float
        Largest ||grad C + 2 lambda theta|| / (||grad C|| + ||2 lambda theta||), over subgradients.
    births : bool
        Whether to add neurons in layers with dead ones.
    max_minutes : float, optional
        Time per member after which the best point so far is taken. Default: no limit.

    Examples
    --------
    >>> import bnrank
    >>> task = bnrank.tasks.low_rank_map(n=10, d_in=2, d_out=2, latent=2, rank=1, width=10, seed=0)
    >>> net, done = bnrank.MLP([2, 2, 2]), bnrank.training.Finish(births=False)
    >>> run = bnrank.train(net, task, ridge=5e-2, steps=100, seed=0, finish=done, progress=False)
    >>> run.finished[0].stationarity.residual < done.rtol
    True
    """

    rtol: float = 1e-8
    births: bool = True
    max_minutes: float | None = None

    def __post_init__(self) -> None:
        limit = validation.optional(validation.number, self.max_minutes, "max_minutes", 0.0, strict=True)
        rtol, births = validation.number(self.rtol, "rtol", 0.0, strict=True), validation.flag(self.births, "births")
        _keep(self, rtol=rtol, births=births, max_minutes=limit)

    @classmethod
    def given(cls, value: object) -> Finish | None:
        """Return the options given as ``finish``: True, False or options."""
        if isinstance(value, cls):
            return value
        known = isinstance(value, bool | np.bool_)
        validation.expect(known, "finish", value, "True, False or a bnrank.training.Finish", TypeError)
        return cls() if value else None


def check_finishable(ridge: Sequence[float], loss: str, widths: Sequence[int], slope: float) -> None:
    """Raise unless a chain of these widths has stationary points at finite norm that `bnrank.finish` can find."""
    if not min(ridge) > 0:
        why = "there need be no minimum at finite norm"
        if loss != "mse":
            why = "there is no minimum at finite norm where the network can separate the classes"
        validation.expect(False, "ridge", f"{min(ridge):g}", f"a number above 0 to finish: without a penalty {why}")
    validation.expect(slope != 1, "net", "a linear network", "an activation of slope below 1")
    validation.expect(len(widths) > 2, "net", "a network without hidden layers", "at least one hidden layer")


@dataclass(frozen=True)
class Save:
    """A folder for checkpoints and results.

    Attributes
    ----------
    out : path
        The folder; created if necessary.
    resume : bool
        Continue from the checkpoint in the folder, on the same trajectory; False discards it and stored results.
    checkpoint_every : int, optional
        Steps between checkpoints. Default: a twentieth of the steps of `bnrank.train`; about one minute for
        `bnrank.flow`.
    tag : str, optional
        The version of those parts of the network or the loss that cannot be identified, such as a scripted module or an
        object of another package with more than plain values. Results in the folder are reused only for the same tag.
        Required for such parts; give another tag when they change.

    Examples
    --------
    >>> import tempfile, bnrank
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save, task = bnrank.training.Save(folder, checkpoint_every=2), bnrank.tasks.low_rank_map(n=40)
    ...     net, options = bnrank.MLP([20, 8, 20]), {"steps": 4, "out": save, "progress": False}
    ...     bnrank.train(net, task, **options).history.equals(bnrank.train(net, task, **options).history)
    True
    """

    out: str | os.PathLike[str]
    resume: bool = True
    checkpoint_every: int | None = None
    tag: str | None = None

    def __post_init__(self) -> None:
        validation.expect(isinstance(self.tag, str | None), "tag", self.tag, "a text", TypeError)
        every = validation.optional(validation.integer, self.checkpoint_every, "checkpoint_every")
        out, resume = sources.as_path(self.out, "out"), validation.flag(self.resume, "resume")
        _keep(self, out=out, resume=resume, checkpoint_every=every)


@contextlib.contextmanager
def folder_of(save: Save | None) -> Iterator[Path | None]:
    """Provide the folder for checkpoints and results, with no other process or thread at work in it; None for None."""
    if save is None:
        yield None
        return
    folder = prepare_folder(save.out)
    with one_writer(folder):
        yield folder


@dataclass(frozen=True)
class Solver:
    """Options of the integrator of `bnrank.flow`.

    Attributes
    ----------
    method : {"rk45", "dop853", "heun", "lsoda", "bdf", "euler"}
        "rk45" and "dop853" are the pairs of Dormand and Prince of order 5 and 8 with SciPy's coefficients. "heun" is
        Heun's method with Euler's method as error estimate. "lsoda" and "bdf" are SciPy's solvers for stiff problems,
        which build a Jacobian and suit small networks only. Where the flow slides along a ReLU kink, "lsoda" may take
        very short steps without end; use "bdf", or limit the evaluations. Errors of these methods are relative to
        ||theta||. "euler" takes fixed steps.
    rtol : float, optional
        Error per step in units of ||theta||. Default: 1e-6 in float64, 1e-4 in float32, 1e-3 for "heun". Heun's error
        is h/2 ||grad C(theta_1) - grad C(theta_0)||. When the flow slides along a ReLU kink, steps back and forth
        across it therefore cause no error beyond their amplitude.
    kink_rtol : float, optional
        Tolerance of the Heun steps that "rk45" and "dop853" take where the gradient is discontinuous, for example on
        the data of T40. Error control alone would need very short steps there. Default: 1e-4; 0 disables Heun steps. In
        the middle of a skipped plateau the tolerance is up to 300 times larger, provided that t is not affected: such
        errors decay while ||theta|| grows.
    step : float, optional
        Length of Euler's steps in t.
    norm_power : float
        "euler" only: its steps are ``step`` / ||theta||^norm_power. At L - 2, ``step`` is a step in the time s of T35,
        as in `GradientDescent`.
    max_relative_step : float, optional
        Longest step of "euler" in units of ||theta||. Default: 0.05. On a skipped plateau, Heun's steps with a
        tolerance of 1 percent replace Euler's; both evaluations of a step use the same mini-batch.
    time : {"t", "arc"}
        Integration variable of the true flow: t, or the relative arc length u, du = ||d theta|| / ||theta||. The latter
        suits flows from tiny weights past saddles. It does not suit convergence to a minimum, where the direction of
        the gradient is undefined.
    batch_size, seed : int, optional
        Stochastic flow ("euler" only): mini-batches, reshuffled every epoch in an order determined by the seed. The
        criterion for the hand-over from a skipped plateau is then evaluated on the batch.

    Examples
    --------
    >>> import bnrank
    >>> solver = bnrank.training.Solver("euler", step=0.01)
    >>> task, net = bnrank.tasks.low_rank_map(n=40, seed=0), bnrank.MLP([20, 8, 20], seed=0)
    >>> flow = bnrank.flow(net, task, t_end=0.05, solver=solver)
    >>> flow.steps, flow.status
    (5, 'finished')
    """

    method: str = "rk45"
    rtol: float | None = None
    kink_rtol: float | None = None
    step: float | None = None
    norm_power: float = 0.0
    max_relative_step: float | None = None
    time: str = "t"
    batch_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        method = validation.choice(self.method, "method", METHODS)
        euler = self.method == "euler"
        validation.choice(self.time, "time", TIMES)
        rtol = validation.optional(validation.number, self.rtol, "rtol", 0.0, strict=True)
        validation.expect(rtol is None or rtol < 1, "rtol", f"{rtol}", "a number between 0 and 1")
        batch_size = validation.optional(validation.integer, self.batch_size, "batch_size")
        _keep(self, seed=validation.seed(self.seed), rtol=rtol, batch_size=batch_size)
        used_by = {"kink_rtol": ("rk45", "dop853"), "step": ("euler",), "max_relative_step": ("euler",)}
        for name, methods in used_by.items():
            value = validation.optional(validation.number, getattr(self, name), name, 0.0, strict=name != "kink_rtol")
            _keep(self, **{name: value})
            if value is not None and method not in methods:
                where = " and ".join(map(repr, methods))
                raise ValueError(f"{name}: got {value:g}, which applies to method {where} only, not to {method!r}")
        power = validation.number(self.norm_power, "norm_power", 0.0)
        validation.expect(euler or not power, "norm_power", f"{power:g}", f"0 for method {method!r}")
        _keep(self, norm_power=power)
        if euler and self.step is None:
            raise ValueError("step: method 'euler' takes steps of a fixed length; give it, step=0.1 for instance")
        if self.batch_size is not None and not euler:
            raise ValueError(f"batch_size: error control, as in method {method!r}, means nothing; use 'euler'")
        if self.time == "arc" and method not in ADAPTIVE:
            raise ValueError(f"time: method {method!r} runs in 't', expected 'rk45', 'dop853' or 'heun' for 'arc'")


@dataclass(frozen=True)
class SkipPlateau:
    """Options for skipping the plateau around the saddle at the origin, for bias-free MLPs of depth 2 or more.

    Attributes
    ----------
    handover_rtol : float
        The true flow takes over when ||grad C(Y) - G||_F > handover_rtol ||G||_F; at most 0.1.
    max_growth : float, optional
        Maximum growth factor of ||theta|| in one step on the plateau. Default: 10 for "dop853", 1.5 for "heun",
        otherwise 4. It bounds the error in weights too small to contribute to ``rtol``: 1e-4 for "rk45", 2e-5 for
        "dop853" and 2e-2 for "heun" per decade if they grow like ||theta||^p with p between -1/2 and 1.
    t_after : float, optional
        End of the flow, measured from the hand-over. Give either this or ``t_end``, which cannot resolve the time after
        a plateau of length 1e20.
    batch_size : int, optional
        Mini-batch size on the plateau, for stochastic flows. Default: that of the solver. The few long steps there see
        as many batches as there are steps, while a flow that waits averages over many: with large batches the two agree
        better.

    Examples
    --------
    >>> import bnrank, torch
    >>> net = bnrank.networks.from_layers([torch.tensor([[1e-4]]), torch.tensor([[1e-4]])])
    >>> skip, x = bnrank.training.SkipPlateau(t_after=0.1), torch.ones(1, 1)
    >>> flow = bnrank.flow(net, (x, x), plateau=skip)
    >>> flow.handover.at_once, round(float(flow.times_since_handover[-1]), 9)
    (False, 0.1)
    """

    handover_rtol: float = 1e-4
    max_growth: float | None = None
    t_after: float | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        _keep(self, batch_size=validation.optional(validation.integer, self.batch_size, "batch_size"))
        _keep(self, handover_rtol=validation.number(self.handover_rtol, "handover_rtol", 0.0, strict=True))
        near = self.handover_rtol <= MAX_HANDOVER_RTOL
        validation.expect(near, "handover_rtol", f"{self.handover_rtol:g}", f"at most {MAX_HANDOVER_RTOL:g}")
        growth = validation.optional(validation.number, self.max_growth, "max_growth", 1.0, strict=True)
        after = validation.optional(validation.number, self.t_after, "t_after", 0.0, strict=True)
        _keep(self, max_growth=growth, t_after=after)


@dataclass(frozen=True)
class Limits:
    """Limits of `bnrank.flow`, checked between steps.

    Attributes
    ----------
    stop : callable, optional
        Called with each recorded `Row`; the flow ends when it returns True.
    max_evaluations : int, optional
        Maximum number of evaluations of cost and gradient.
    max_minutes : float, optional
        Maximum wall time in minutes.
    max_networks : int, optional
        Maximum number of stored networks, at least 2; the network at the hand-over does not count. Default: 64, or
        fewer if they would exceed one gigabyte. When there are more, every other one is dropped.

    Examples
    --------
    >>> import bnrank
    >>> limits = bnrank.training.Limits(stop=lambda row: row.step >= 3)
    >>> task, net = bnrank.tasks.low_rank_map(n=40, seed=0), bnrank.MLP([20, 8, 20], seed=0)
    >>> flow = bnrank.flow(net, task, t_end=100.0, limits=limits)
    >>> flow.steps, flow.status
    (3, 'stopped')
    """

    stop: Callable[[Any], bool] | None = None
    max_evaluations: int | None = None
    max_minutes: float | None = None
    max_networks: int | None = None

    def __post_init__(self) -> None:
        if self.stop is not None and not callable(self.stop):
            raise TypeError(f"stop: got {validation.describe(self.stop)}, expected a function of a row")
        validation.optional(validation.integer, self.max_evaluations, "max_evaluations")
        validation.optional(validation.number, self.max_minutes, "max_minutes", 0.0, strict=True)
        validation.optional(validation.integer, self.max_networks, "max_networks", 2)
