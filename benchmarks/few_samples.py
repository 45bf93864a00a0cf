"""Dimensions estimated from few samples over the right ones: ``python -m benchmarks.few_samples``.

Gaussian samples in 5 to 200 dimensions with five spectra (isotropic, 1 / i, 1 / i^2, geometric, with a gap), at 95 and
99 percent of the variance: the extremes of all draws for each number of samples, apart for the spectrum with a gap,
whose right dimension jumps where the share is passed in the tail.
"""

import argparse
from collections.abc import Sequence

import numpy as np
import torch

from benchmarks.about import machine
from bnrank._core.text import render
from bnrank.measures.usage import centered_dimension, variance_dimension

SAMPLES = (10, 20, 30, 50)
DIMENSIONS = (5, 20, 50, 200)
SHARES = (0.95, 0.99)
SPECTRA = {
    "isotropic": lambda i: np.ones_like(i),
    "1 / i": lambda i: 1 / i,
    "1 / i^2": lambda i: 1 / i**2,
    "geometric": lambda i: 0.8**i,
    "gap": lambda i: np.where(i <= 3, 1.0, 1e-3),
}


def ratios(samples: int, draws: int, names: Sequence[str]) -> list[float]:
    """Return estimate over right dimension, for every number of dimensions, spectrum, share and draw."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for d in DIMENSIONS:
        for name in names:
            variances = torch.from_numpy(SPECTRA[name](np.arange(1.0, d + 1)))
            right = variance_dimension(variances, 10**9, d, SHARES, corrected=False)
            for _ in range(draws):
                x = torch.randn(samples, d, dtype=torch.float64, generator=generator) * variances.sqrt()
                found += [a / b for a, b in zip(centered_dimension(x, SHARES), right, strict=True)]
    return found


def main() -> None:
    """Print a row for each number of samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=60)
    draws = parser.parse_args().draws
    rows = []
    for samples in SAMPLES:
        for names in (list(SPECTRA)[:-1], ["gap"]):
            found = ratios(samples, draws, names)
            row = {"samples": samples, "spectrum": "gap" if names == ["gap"] else "others"}
            rows.append(row | {"least": round(min(found), 2), "largest": round(max(found), 2)})
    print(machine(), render(rows), sep="\n")


if __name__ == "__main__":
    main()
