"""The subspace of the inputs that an output depends on, sharpened by a Gaussian process."""

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

MAX_ROWS = 600  # of the Gaussian process, whose cost is cubic
STEPS, FURTHER_STEPS = 150, 40  # of L-BFGS, from the directions of a network and from the optimum of all rows
START = 0.7  # inverse length scale of directions of variance 1
NOISE = 0.01  # initial variance of the noise, relative to that of y
JITTER = 1e-8
FAILED = 1e10  # in place of the likelihood of a singular covariance


def refined(z: np.ndarray, y: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the parameters of a Gaussian process of y on a few linear combinations of z, started at given ones.

    y has mean 0 and covariance s^2 exp(-||W (z - z')||^2 / 2) + e^2 [z = z'], and W (n, d), s and e maximize the
    likelihood (linear embeddings of Gaussian processes, Garnett et al. 2014). What the data determine of W is its
    span, and the length scales in it.

    Parameters
    ----------
    z, y : ndarray
        (N, d) and (N,), of variance 1.
    start : ndarray
        W, then log s^2 and log e^2, as one array, (n d + 2,), as from :func:`started`.
    """
    return _maximized(z, y, start, STEPS)


def started(directions: np.ndarray) -> np.ndarray:
    """Return initial parameters from directions of variance 1, (n, d)."""
    return np.append(START * directions.ravel(), [0.0, np.log(NOISE)])


def again(z: np.ndarray, y: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return :func:`refined` on other rows, with few steps from the optimum of all rows."""
    return _maximized(z, y, start, FURTHER_STEPS)


def _maximized(z: np.ndarray, y: np.ndarray, start: np.ndarray, steps: int) -> np.ndarray:
    inputs, outputs = torch.from_numpy(np.ascontiguousarray(z)), torch.from_numpy(np.ascontiguousarray(y))

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        parameters = torch.from_numpy(values).requires_grad_()
        try:
            loss = minus_log_likelihood(parameters, inputs, outputs)
        except torch.linalg.LinAlgError:
            return FAILED, np.zeros(len(values))
        (gradient,) = torch.autograd.grad(loss, parameters)
        return float(loss.detach()), gradient.numpy()

    made = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": steps})
    return np.asarray(made.x)


def minus_log_likelihood(parameters: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """Return -log p(y) of the Gaussian process, without the constant N log(2 pi) / 2.

    Parameters
    ----------
    parameters : Tensor
        As in :func:`refined`.
    z, y : Tensor
        (N, d) and (N,), float64.

    Examples
    --------
    >>> one = torch.ones(1, dtype=torch.float64)  # a single row: y ~ N(0, s^2 + e^2), here with both 1
    >>> round(float(minus_log_likelihood(torch.zeros(3, dtype=torch.float64), one[:, None], one)), 4)
    0.5966
    """
    w, (signal, noise) = parameters[:-2].reshape(-1, z.shape[1]), parameters[-2:].exp()
    u = z @ w.T
    squares = u.square().sum(1)
    distances = (squares[:, None] + squares - 2 * u @ u.T).clamp_min(0)
    eye = torch.eye(len(z), dtype=z.dtype)
    factor = torch.linalg.cholesky(signal * (-0.5 * distances).exp() + (noise + JITTER * signal) * eye)
    white = torch.linalg.solve_triangular(factor, y[:, None], upper=False)
    return 0.5 * white.square().sum() + factor.diagonal().log().sum()
