"""Random small problems finished to stationary points: python -m benchmarks.minima --seeds 0 50.

With --landscape, one problem from many seeds: how many minima, of which ranks and losses.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

import bnrank
from benchmarks import at_minima, landscape


def draw(seed: int) -> tuple[bnrank.Task, bnrank.MLP, float]:
    """Return a task of low rank, with noise or not, a network of depth 3 to 6 and width 5 to 20, and a ridge."""
    rng = np.random.default_rng(seed)
    depth, width, n = int(rng.integers(3, 7)), int(rng.integers(5, 21)), int(rng.integers(20, 101))
    d_in, d_out = int(rng.integers(2, 9)), int(rng.integers(1, 9))
    latent = int(rng.integers(1, min(d_in, 4) + 1))
    rank = int(rng.integers(1, min(latent, d_out) + 1))
    ridge, noise = float(10 ** rng.uniform(-3.5, -1.7)), float(rng.choice([0.0, 0.1]))
    sizes = {"n": n, "d_in": d_in, "d_out": d_out, "latent": latent, "rank": rank}
    task = bnrank.tasks.low_rank_map(**sizes, width=20, seed=seed, noise=noise)
    return task, bnrank.MLP([d_in, *[width] * (depth - 1), d_out]), ridge


def main() -> None:
    """Print a line per problem and the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 50), metavar=("FIRST", "END"))
    parser.add_argument("--max-minutes", type=float, default=5.0)
    parser.add_argument("--landscape", action="store_true", help="one problem from every seed")
    parser.add_argument("--picture", type=Path, help="with --landscape, a file for the picture")
    parser.add_argument("--verdicts", type=Path, help="check statements on finished networks, and write them to a page")
    given = parser.parse_args()
    if given.verdicts:
        at_minima.main(given.verdicts, given.max_minutes)
        return
    if given.landscape:
        landscape.main(*given.seeds, given.max_minutes, given.picture)
        return
    rows = []
    for seed in range(*given.seeds):
        task, net, ridge = draw(seed)
        run = bnrank.train(net, task, ridge=ridge, steps=1000, seed=seed, progress=False)
        began = time.process_time()
        done = bnrank.finish(run.network(0), task, ridge, max_minutes=given.max_minutes, progress=False)
        at = done.stationarity
        rows.append((time.process_time() - began, at.residual, at.kind, done.loss <= done.loss_before))
        births = max((birth.lower for birth in at.births), default=0.0)
        print(
            f"seed {seed}: widths {net.widths}, N {task.n}, ridge {ridge:.2g}: {rows[-1][0]:.1f} s of processor, "
            f"relative gradient {at.residual:.1e}, loss {done.loss_before:.8f} -> {done.loss:.8f}, "
            f"{len(at.slopes)} kinks, largest new neuron {births:.4f}, {at.kind}; {done.reason}",
            flush=True,
        )
    reached = sum(residual <= 1e-8 for _, residual, _, _ in rows)
    seconds = statistics.median(row[0] for row in rows)
    print(f"{reached} of {len(rows)} at 1e-8; median {seconds:.1f} s; loss never above: {all(row[3] for row in rows)}")
    for kind in sorted({row[2] for row in rows}):
        print(f"  {kind}: {sum(row[2] == kind for row in rows)}")


if __name__ == "__main__":
    main()
