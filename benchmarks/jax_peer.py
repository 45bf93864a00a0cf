"""Ensemble training with Adam against the same step in JAX: `jit` of `vmap` of `value_and_grad`, Adam and ridge.

JAX runs in a process of its own, and waits while bnrank runs. It is looked for in this interpreter, then in the one
that the environment variable BNRANK_JAX_PYTHON names.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from benchmarks.configurations import LR, RIDGE, THREE, Configuration
from benchmarks.rows import Row, skipped
from benchmarks.timing import in_turn

__all__ = ["measure"]

CHECKED = 3  # steps after which losses are compared; rounding grows fast at depth 25
TOLERANCE = 5e-3  # float32 rounding, which the first steps of Adam magnify where gradients are near 0


def measure(quick: bool) -> Iterator[Row]:
    """Time the three configurations, or say why not."""
    python = _interpreter()
    if python is None:
        yield from skipped("jax_peer", "Adam step", "JAX", "pip install bnrank[benchmark]")
        return
    for configuration, _ in THREE:
        yield _row(configuration, python, rounds=2 if quick else 7)


def _interpreter() -> str | None:
    if importlib.util.find_spec("jax") is not None:
        return sys.executable
    return os.environ.get("BNRANK_JAX_PYTHON")


def _row(configuration: Configuration, python: str, rounds: int) -> Row:
    with tempfile.TemporaryDirectory() as folder, _Jax(configuration, python, Path(folder)) as jax:
        theirs = jax.ask(steps=CHECKED, restart=True)["losses"]
        ours = configuration.train(CHECKED).summary.loss.values
        times = in_turn(
            {
                "bnrank": configuration.train_step,
                "jax": lambda: jax.ask(steps=configuration.steps)["seconds"] / configuration.steps,
            },
            rounds,
        )
    apart = float(np.abs(ours / np.array(theirs) - 1).max())
    agreement = f"losses after {CHECKED} steps differ by at most {apart:.1g}"
    if apart > TOLERANCE:
        return Row("jax_peer", str(configuration), "JAX", None, note=f"not the same computation: {agreement}")
    ratio = times.ratio("jax", "bnrank")
    return Row("jax_peer", str(configuration), f"JAX {jax.version}", ratio, 1.0, aim=1.3, note=agreement)


class _Jax:
    """The other process: takes a line of JSON, answers with one."""

    def __init__(self, configuration: Configuration, python: str, folder: Path) -> None:
        self.arguments = [python, str(Path(__file__).with_name("jax_process.py")), str(folder / "start.npz")]
        task = configuration.task
        nets = [configuration.net(seed) for seed in range(configuration.members)]
        parameters = [np.stack(p) for p in zip(*([p.detach() for p in net.parameters()] for net in nets), strict=True)]
        tensors: dict[str, Any] = {f"p{i:03}": value for i, value in enumerate(parameters)}
        np.savez(folder / "start.npz", x=task.x, y=task.y, ridge=RIDGE, lr=LR, **tensors)

    def __enter__(self) -> _Jax:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(self.arguments, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        self.version = self._answer()["version"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.communicate()  # the end of its input ends it

    def ask(self, **request: Any) -> dict[str, Any]:
        """Have some steps done."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"JAX ended: {' '.join(self.arguments[:1])} returned {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer
