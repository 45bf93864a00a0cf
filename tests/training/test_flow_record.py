"""What a flow that skips its first plateau records there: loss, gradient, times, networks, plateaus."""

import math

import numpy as np
import pytest
import torch

import bnrank
from training.common import follow

DOUBLE = torch.float64


def data(features=5, outputs=2, n=20, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=generator, dtype=DOUBLE)
    return x, torch.randn(n, outputs, generator=generator, dtype=DOUBLE)


def followed(depth=4, init=1e-3, **options):
    x, y = data()
    net = bnrank.MLP([5, *[6] * (depth - 1), 2], bias=False, init=init, seed=1)
    options = {"method": "heun", "skip_plateau": True, "t_after": 30.0} | options
    return follow(net, (x, y), **options), x, y


def test_loss_and_gradient_on_the_plateau_are_those_of_the_network():
    flow, x, y = followed(init=0.01)
    rows = [row for row in flow.network_rows if 0 < row < flow.handover.row]
    assert len(rows) >= 5
    for row in rows:
        net = flow.networks[flow.network_rows.index(row)]
        loss = ((net(x) - y) ** 2).sum() / len(x)
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        assert flow.gradient_norm[row] == pytest.approx(norm, rel=2e-4)
        assert flow.loss[row] == pytest.approx(loss.item(), rel=1e-7)


def test_times_before_the_handover_keep_their_digits():
    """At depth 6 from 1e-6 the last rows before the hand-over are within the rounding of t."""
    flow, _, _ = followed(depth=6, init=1e-6)
    assert flow.handover.time > 1e18
    row = flow.handover.row
    assert flow.times_since_handover[row] == 0
    assert (np.diff(flow.times_since_handover) > 0).all()
    np.testing.assert_allclose(
        flow.times_since_handover[:row] + flow.handover.time, flow.times[:row], atol=1e-12 * flow.handover.time
    )


def test_the_network_at_the_handover_is_kept():
    flow, _, _ = followed(max_networks=2, every=7)
    assert flow.network_rows == [0, flow.handover.row, len(flow.times) - 1]
    net = flow.networks[1]
    size = math.sqrt(sum(float(p.detach().square().sum()) for p in net.parameters()))
    assert size == pytest.approx(flow.handover.radius, rel=1e-12)


@pytest.mark.parametrize("t_after", [0.01, 1.0])
def test_a_plateau_that_is_not_left_does_not_end(t_after):
    flow, _, _ = followed(t_after=t_after)
    assert [plateau.end for plateau in flow.plateaus] == [math.inf]


def test_it_ends_where_it_is_left():
    flow, _, _ = followed(t_after=100.0)
    assert 0 < flow.plateaus[0].end < 100


def test_first_escape_needs_a_plateau_that_is_left():
    flow, x, y = followed(t_after=0.01)
    g = bnrank.escape.output_gradient("mse", y)
    with pytest.raises(ValueError, match="flow: it has not left a plateau"):
        bnrank.escape.first_escape(flow, x, g)
    with pytest.raises(TypeError, match="flow: got"):
        bnrank.escape.first_escape(3, x, g)


def test_first_escape_agrees_with_t37():
    flow, x, y = followed(t_after=100.0, init=1e-5)
    g = bnrank.escape.output_gradient("mse", y)
    found = bnrank.escape.first_escape(flow, x, g)
    assert found.predicted == pytest.approx(found.observed, rel=0.02)
    assert found.row == flow.handover.row
    assert f"predicted at t = {found.predicted:.4g}, observed at {found.observed:.4g}" in str(found)
    assert all(str(result).splitlines()[0] in result._repr_html_() for result in (flow, found))
    chain = bnrank.escape.first_escape(flow, x, g, rank=1)
    assert chain.predicted == pytest.approx(chain.observed, rel=0.05)
    assert chain.start < found.start
    later = bnrank.escape.first_escape(flow, x, g, end=found.observed / 2)
    assert later.observed == pytest.approx(found.observed / 2)
    assert later.predicted == pytest.approx(later.observed, rel=0.02)
    with pytest.raises(ValueError, match="rank: got 11, expected at most the"):
        bnrank.escape.first_escape(flow, x, g, rank=11)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_relative_step": 0.1}, "max_relative_step: got 0.1, which applies to method 'euler' only"),
        ({"kink_rtol": 0.1}, "kink_rtol: got 0.1, which applies to method 'rk45' and 'dop853' only"),
        ({"handover_rtol": 3.0}, "handover_rtol: got 3, expected at most 0.1"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        followed(**options)
