"""NTK trace and Jacobian spectra of an MLP against `torch.func` and nngeometry: time, memory, and the same numbers.

``python -m benchmarks.jacobian KIND SAMPLES`` is what runs in a process of its own to measure memory.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap

import bnrank
from benchmarks.rows import Row, Spread, skipped
from benchmarks.timing import in_turn, seconds

__all__ = ["measure"]

WIDTHS = [20, *[100] * 11, 20]
N = 300
MANY = 100_000
PAIRS = 100  # samples of the Gram tensor, (100 * 20)^2 numbers
SAME = 1e-8  # largest difference, relative to the largest number, in float64
WHAT = f"depth {len(WIDTHS) - 1} × width {WIDTHS[1]}, N {N}"


def net() -> bnrank.MLP:
    """Return the network, in float64, with biases that are not 0."""
    result = bnrank.MLP(WIDTHS, seed=0, dtype=torch.float64)
    for bias in result.biases:
        bias.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
    return result


def samples(n: int) -> Tensor:
    """Return standard normal x."""
    return torch.randn(n, WIDTHS[0], dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def trace_by_rows(module: bnrank.MLP, x: Tensor) -> Tensor:
    """Return Tr Theta(x_i, x_i) from the parameter Jacobian of every sample."""
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    rows = vmap(jacrev(lambda p, s: functional_call(module, p, (s,))), in_dims=(None, 0))(parameters, x)
    return sum((r * r).flatten(1).sum(1) for r in rows.values())  # type: ignore[return-value]


def trace_and_values(module: bnrank.MLP, x: Tensor) -> Tensor:
    """Return the singular values of every Jf(x_i), from the pass that also gives the traces."""
    jacobian = bnrank.Jacobian(module, x)
    assert len(jacobian.ntk_trace) == len(x)
    return jacobian.singular_values


def values_by_rows(module: bnrank.MLP, x: Tensor) -> Tensor:
    """Return the singular values of every Jf(x_i)."""
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    return torch.linalg.svdvals(vmap(jacrev(lambda s: functional_call(module, parameters, (s,))))(x))


def measure(quick: bool) -> Iterator[Row]:
    """Compare times first, then memory in processes of their own."""
    module, x = net(), samples(N)
    many = 3 if quick else 11
    yield _ratio(
        f"NTK trace, {WHAT}",
        "torch.func: vmap(jacrev) over the parameters, squared and summed",
        lambda: bnrank.ntk.trace(module, x),
        lambda: trace_by_rows(module, x),
        rounds=2 if quick else 4,
        at_least=50.0,
    )
    gc.collect()
    yield _ratio(
        f"NTK trace and singular values of Jf, {WHAT}",
        "torch.func: vmap(jacrev) over the inputs, svdvals, without the trace",
        lambda: trace_and_values(module, x),
        lambda: values_by_rows(module, x),
        rounds=many,
        at_least=1.0,
    )
    yield from _nngeometry(module, x, many)
    yield from _memory()


def _ratio(
    name: str,
    against: str,
    ours: Callable[[], Tensor],
    theirs: Callable[[], Tensor],
    rounds: int,
    at_least: float | None = None,
    same: float = SAME,
) -> Row:
    mine, other = ours(), theirs()
    apart = float((mine - other).abs().max() / other.abs().max())
    if not apart <= same:
        return Row("jacobian", name, against, None, note=f"not the same numbers: they differ by {apart:.1g}")
    del mine, other
    times = in_turn({"ours": lambda: seconds(ours), "theirs": lambda: seconds(theirs)}, rounds)
    least = {key: 1e3 * min(t[key] for t in times) for key in ("ours", "theirs")}
    note = f"{least['ours']:.3g} and {least['theirs']:.4g} ms; the same to {apart:.0e} of the largest"
    return Row("jacobian", name, against, times.ratio("theirs", "ours"), at_least, note=note)


def _nngeometry(module: bnrank.MLP, x: Tensor, rounds: int) -> Iterator[Row]:
    """Compare with nngeometry, which has the whole Gram tensor and the trace summed over samples."""
    if importlib.util.find_spec("nngeometry") is None:
        yield from skipped("jacobian", "NTK trace, Gram tensor", "nngeometry", "pip install nngeometry")
        return
    from nngeometry.backend import TorchHooksJacobianBackend

    few = x[:PAIRS]

    def loader(data: Tensor) -> torch.utils.data.DataLoader:
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data.clone()), batch_size=len(data))

    yield _ratio(
        f"NTK trace, {WHAT}",
        "nngeometry: implicit_trace, its mean over the samples alone",
        lambda: bnrank.ntk.trace(module, x).mean(),
        lambda: TorchHooksJacobianBackend(module).implicit_trace(loader(x)),
        rounds,
        same=1e-6,  # it sums in float32
    )
    yield _ratio(
        f"NTK Gram tensor, {WHAT.replace(str(N), str(PAIRS))}",
        "nngeometry: get_gram_matrix",
        lambda: bnrank.ntk.gram(module, few),
        lambda: TorchHooksJacobianBackend(module).get_gram_matrix(loader(few)).permute(1, 3, 0, 2),
        min(rounds, 5),
    )


# Memory ----------------------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[bnrank.MLP, Tensor], object]] = {
    "trace": bnrank.ntk.trace,
    "trace_by_rows": trace_by_rows,
    "both": trace_and_values,
}


def _memory() -> Iterator[Row]:
    if not Path("/proc/self/clear_refs").exists():
        yield from skipped("jacobian", "peak memory", "torch.func", "needs Linux's /proc")
        return
    (ours, _, _), (theirs, _, _) = _run("trace", N), _run("trace_by_rows", N)
    yield Row(
        "jacobian",
        f"NTK trace, {WHAT}, extra memory",
        "torch.func: vmap(jacrev) over the parameters",
        Spread.of([ours / theirs]),
        at_most=1 / 20,
        note=f"{ours / 1e6:.1f} and {theirs / 1e6:.0f} MB",
    )
    extra, peak, time = _run("both", MANY)
    yield Row(
        "jacobian",
        f"NTK trace and singular values of Jf, N {MANY:,}, peak memory",
        "2 GB for the whole process",
        Spread.of([peak / 1e9]),
        at_most=2.0,
        unit="GB",
        note=f"{extra / 1e6:.0f} MB of it besides libraries and data; {time:.1f} s",
    )


def _run(kind: str, n: int) -> tuple[float, float, float]:
    """Return growth and peak of the memory of a fresh process, in bytes, and the time."""
    command = [sys.executable, "-m", "benchmarks.jacobian", kind, str(n)]
    root = Path(__file__).resolve().parent.parent
    printed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    growth, peak, time = map(float, printed.split())
    return growth, peak, time


def _status(key: str) -> int:
    """Return a line of /proc/self/status, in bytes."""
    found = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def _main(kind: str, n: int) -> None:
    module, x = net(), samples(n)
    KINDS[kind](module, samples(2))  # libraries warmed up
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    time = seconds(functools.partial(KINDS[kind], module, x))
    peak = _status("VmHWM")
    print(peak - before, peak, time)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
