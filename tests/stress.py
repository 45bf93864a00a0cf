"""Threads that have nothing to do with bnrank, beside its functions: everything is bit by bit what it is alone.

``python -m tests.stress --rounds 2000`` runs as many calls of the library, in turn, beside four other threads: one
draws random numbers of torch and runs layers in training mode, one draws those of NumPy and Python, one runs networks
that the library never saw, and one trains.
"""

import argparse
import random
import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

import bnrank

COMPRESSED = 40  # rounds between calls of compress, which takes a second


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return make()


# Other threads: each step returns a number, which depends on all steps before it -------------------------------------


def draws_of_torch() -> Callable[[], float]:
    """Random numbers and layers that draw them, from the generator of the process."""
    torch.manual_seed(1)
    net = seeded(lambda: nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5), nn.RReLU(), nn.Linear(5, 2))).train()
    x = torch.linspace(-1, 1, 20).reshape(4, 5)

    def step() -> float:
        with torch.no_grad():
            return float(torch.rand(3).sum() + net(x).sum() + torch.randn(2).prod())

    return step


def draws_of_numpy() -> Callable[[], float]:
    """Random numbers of NumPy and Python, from the generators of the process."""
    np.random.seed(2)  # noqa: NPY002
    random.seed(3)
    return lambda: float(np.random.rand(3).sum() + random.random())  # noqa: NPY002


def foreign_networks() -> Callable[[], float]:
    """Networks that the library never saw: a transformer's fast path, modes, functions of autograd, new modules."""
    encoder = seeded(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)).eval()
    trained = nn.ModuleList([nn.Dropout(0.5) for _ in range(30)]).train()
    x = torch.linspace(-1, 1, 3 * 4 * 8).reshape(3, 4, 8)

    def step() -> float:
        with torch.no_grad():
            out = encoder(x).sum()
        weight = torch.ones(3, requires_grad=True)
        Doubled.apply(weight).sum().backward()
        made = nn.utils.skip_init(nn.Linear, 2, 2, bias=False).requires_grad_(False)  # draws nothing
        made.weight.fill_(0.5)
        modes = sum(part.training for part in (*trained, made)) + made.weight.requires_grad
        assert torch.is_grad_enabled()
        assert torch.backends.mha.get_fastpath_enabled()
        return float(out + weight.grad.sum() + made(torch.ones(1, 2)).sum() + modes)

    return step


def trainings() -> Callable[[], float]:
    """Trainings by the library, of a module that is not an MLP."""
    task = bnrank.tasks.low_rank_map(n=12, d_in=4, d_out=2, latent=2, rank=1, width=4, seed=0)
    net = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))

    def step() -> float:
        run = bnrank.train(net, task, ridge=1e-3, steps=3, seed=0, progress=False)
        return float(run.history.loss.values.sum())

    return step


STREAMS = {
    "torch": draws_of_torch,
    "numpy": draws_of_numpy,
    "foreign": foreign_networks,
    "train": trainings,
}


# The library's functions: each returns a text or array that must be the same in every call ----------------------------


def calls() -> dict[str, Callable[[], object]]:
    net = seeded(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    )
    noisy = seeded(lambda: nn.Sequential(nn.Linear(4, 6), Noise(), nn.Linear(6, 2)))
    encoder = seeded(lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))
    x = torch.linspace(-1, 1, 240).sin().reshape(60, 4)
    y = x[:, :2].clone()

    def watched() -> object:
        with bnrank.watch(net, every=1, x=x) as watch:
            watch.step()
        return watch.history.dimension_95.values.tobytes(), watch.history.stable_rank.values.tobytes()

    def profiled(network: nn.Module, given: torch.Tensor) -> object:
        profile = bnrank.profile(network, given)
        return [profile[name].values.tobytes() for name in ("stable_rank", "activation_singular_values", "ntk_trace")]

    return {
        "trace": lambda: str(bnrank.graph.trace(net.eval(), x[:2])),
        "find": lambda: str(bnrank.invariants.find(net, x[:2])),
        "check": lambda: str(bnrank.check(net, x[:8], y[:8], ridge=1e-3)),
        "profile": lambda: profiled(net, x),
        "profile of noise": lambda: profiled(noisy, x),
        "profile of attention": lambda: profiled(encoder, x.reshape(12, 5, 4)),
        "compare": lambda: bnrank.compare(net, net, x).data.cka.values.tobytes(),
        "watch": watched,
        "compress": lambda: str(bnrank.compress(net, x, tol=0.3, tune=0, progress=False).certificate.parameters),
    }


class Noise(nn.Module):
    """Adds noise in every mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.randn_like(x) + nn.functional.dropout(x, 0.5)


def run(rounds: int, compressed: int = COMPRESSED) -> dict[str, str]:
    """Return how many steps of each thread and calls of each function were made, and how many differed from alone.

    Every ``compressed``-th round calls compress.
    """
    alone = {name: function() for name, function in calls().items()}
    functions = calls()
    steps: dict[str, list[float]] = {name: [] for name in STREAMS}
    errors: dict[str, str] = {}
    stop = threading.Event()
    ready = [(name, make()) for name, make in STREAMS.items()]

    def work(name: str, step: Callable[[], float]) -> None:
        try:
            while not stop.wait(0.001):
                steps[name].append(step())
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in ready]
    for thread in threads:
        thread.start()
    differed, made = dict.fromkeys(functions, 0), dict.fromkeys(functions, 0)
    quick = [name for name in functions if name != "compress"]
    for i in range(rounds):
        name = "compress" if i % compressed == compressed - 1 else quick[i % len(quick)]
        made[name] += 1
        differed[name] += functions[name]() != alone[name]
    stop.set()
    for thread in threads:
        thread.join()
    outcome = {name: f"{differed[name]} of {made[name]} differ" for name in functions}
    for name, make in STREAMS.items():
        step = make()
        expected = [step() for _ in steps[name]]
        wrong = sum(a != b for a, b in zip(steps[name], expected, strict=True))
        outcome[f"thread {name}"] = errors.get(name, f"{wrong} of {len(expected)} differ")
    return outcome


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    for key, text in run(parser.parse_args().rounds).items():
        print(f"{key:24s} {text}")
