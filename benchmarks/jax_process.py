"""What `jax_peer` runs in a process of its own; needs JAX and NumPy alone.

Reads lines such as {"steps": 20, "restart": true} and answers {"seconds": ..., "losses": [...]}.
"""

# mypy: ignore-errors
from __future__ import annotations

import functools
import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np


def cost(parameters, x, y):
    """Return C of one member."""
    weights, biases = parameters[::2], parameters[1::2]
    for w, b in zip(weights[:-1], biases[:-1], strict=True):
        x = jax.nn.relu(x @ w.T + b)
    return jnp.mean(jnp.sum((x @ weights[-1].T + biases[-1] - y) ** 2, axis=1))


def penalty(parameters):
    return sum(jnp.sum(p**2) for p in parameters)


@functools.partial(jax.jit, donate_argnums=0)
def step(state, x, y, ridge, lr):
    """One step of Adam on C + ridge ||theta||^2 for all members."""
    parameters, first, second, t = state

    def member(p):
        value, gradient = jax.value_and_grad(cost)(p, x, y)
        return value, [g + 2 * ridge * q for g, q in zip(gradient, p, strict=True)]

    values, gradients = jax.vmap(member)(parameters)
    t = t + 1
    first = [0.9 * m + 0.1 * g for m, g in zip(first, gradients, strict=True)]
    second = [0.999 * v + 0.001 * g * g for v, g in zip(second, gradients, strict=True)]
    scale = lr / (1 - 0.9**t)
    root = jnp.sqrt(1 - 0.999**t)
    moved = [p - scale * m / (jnp.sqrt(v) / root + 1e-8) for p, m, v in zip(parameters, first, second, strict=True)]
    return (moved, first, second, t), values


@jax.jit
def losses(parameters, x, y, ridge):
    return jax.vmap(lambda p: cost(p, x, y) + ridge * penalty(p))(parameters)


def main() -> None:
    data = np.load(sys.argv[1])
    x, y, ridge, lr = jnp.asarray(data["x"]), jnp.asarray(data["y"]), float(data["ridge"]), float(data["lr"])

    def start():
        parameters = [jnp.asarray(data[name]) for name in sorted(data.files) if name.startswith("p")]
        return parameters, [0 * p for p in parameters], [0 * p for p in parameters], jnp.zeros(())

    state = start()
    print(json.dumps({"version": jax.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("restart"):
            state = start()
        jax.block_until_ready(state)
        began = time.perf_counter()
        for _ in range(request["steps"]):
            state, _ = step(state, x, y, ridge, lr)
        jax.block_until_ready(state)
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "losses": losses(state[0], x, y, ridge).tolist()}), flush=True)


if __name__ == "__main__":
    main()
