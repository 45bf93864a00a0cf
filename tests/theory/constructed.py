"""Random networks and the norm, for the tests of constructions."""

import itertools

import torch
from hypothesis import settings
from hypothesis import strategies as st

from bnrank.networks import from_layers
from helpers import normal

QUICK = settings(derandomize=True, deadline=None, max_examples=25)
SLOPES = st.sampled_from([0.0, 0.3, -0.5, 1.0])


def layer_norms(net):
    biases = net.biases or [torch.zeros(1)] * net.depth
    return [float((w.detach() ** 2).sum() + (b.detach() ** 2).sum()) for w, b in zip(net.weights, biases, strict=True)]


def network(widths, slope=0.0, bias=True, seed=0):
    """Weights and biases of unit scale, so that many neurons are active on some samples only."""
    weights = [normal(m, n, seed=seed + 10 * i) / n**0.5 for i, (n, m) in enumerate(itertools.pairwise(widths))]
    biases = [0.5 * normal(m, seed=seed + 10 * i + 5) for i, m in enumerate(widths[1:])]
    return from_layers(weights, biases if bias else [], slope)


@st.composite
def networks(draw, d_in=None, d_out=None, slope=None, max_depth=4):
    hidden = draw(st.lists(st.integers(1, 6), max_size=max_depth - 1))
    ends = [draw(st.integers(1, 4)) if d is None else d for d in (d_in, d_out)]
    slope = draw(SLOPES) if slope is None else slope
    return network([ends[0], *hidden, ends[1]], slope, draw(st.booleans()), draw(st.integers(0, 999)))


def close(a, b, rtol=1e-11):
    a, b = (torch.as_tensor(v, dtype=torch.float64).detach() for v in (a, b))
    return a.shape == b.shape and float((a - b).abs().max()) <= rtol * max(1.0, float(b.abs().max()))
