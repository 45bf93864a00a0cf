"""The linear references of F3: projections onto principal components of images."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnrank.figures.f03_autoencoders.computation import Images, denoising, image_task
from bnrank.figures.harness.training import held_out

MOST_COMPONENTS = 120


def linear_projections(images: Tensor, x: Tensor, noise: float) -> list[dict[str, Any]]:
    """Return rows for projections onto 1, 2, ... principal components of images, applied to x with noise.

    Each has the number of components k, the median distance to x after over before, sqrt(k / d), which is left if x
    itself is not changed, and the unexplained part of the variance of x. Both are minus the mean of ``images``.
    """
    images, x = images.double(), x.double()
    values, vectors = torch.linalg.eigh(images.T @ images)
    most = min(int((values > 1e-9 * values[-1]).sum()), MOST_COMPONENTS)
    layer = nn.utils.skip_init(nn.Linear, x.shape[1], x.shape[1], bias=False, dtype=torch.float64)
    rows = []
    for k in np.unique(np.linspace(1, most, 40).astype(int)).tolist():
        basis = vectors[:, -k:]
        with torch.no_grad():
            layer.weight.copy_(basis @ basis.T)
        kept = float((x @ basis).square().sum() / x.square().sum())
        ratio = denoising(layer, x, noise).ratio
        alone = (k / x.shape[1]) ** 0.5
        rows.append({"components": k, "after / before": ratio, "sqrt(k / d)": alone, "unexplained": 1 - kept})
    return rows


def on_unseen(images: tuple[int | None, ...], unseen: int, noise: float, limit: float) -> list[dict[str, Any]]:
    """Return a row for each number of images: the best projection onto their components, applied to unseen images.

    The last column is the unexplained variance with as many components as pass ``limit`` of the noise.
    """
    result = []
    for n in images:
        task, _ = image_task(Images(n, unseen))
        rows = linear_projections(task.x, held_out(task)[0], noise)
        fits = [row["unexplained"] for row in rows if row["sqrt(k / d)"] <= limit]
        best = min(rows, key=lambda row: row["after / before"])
        result.append({"images": task.n, **best, f"unexplained where sqrt(k / d) <= {limit:g}": min(fits)})
    return result
