"""What a run and a flow say of themselves."""

import numpy as np
import pytest
import xarray as xr

import bnrank
import results
from bnrank.training import overview
from notebooks import shown


@pytest.fixture(scope="module")
def run():
    task = bnrank.tasks.low_rank_map(n=40, seed=0)
    net = bnrank.MLP([20, 8, 8, 20], seed=0)
    return bnrank.train(net, task, ridge=1e-2, steps=20, record=5, members=3, seed=0, progress=False)


def test_a_run_shows_a_row_and_a_curve_per_member(run):
    html = run._repr_html_()
    page = shown(html)
    heading, *rows = page.tables[0]
    assert heading == ["member", "seed", "ridge", "status", "steps", "loss", "cost", "parameter_norm"]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert [row[5] for row in rows] == [f"{value:.4g}" for value in run.summary["loss"].values]
    assert html.count("<polyline") == 3
    loss = run.history["loss"].values
    assert f"loss of the members from step 0 to 20: {loss.min():.4g} to {loss.max():.4g}" in page.text


def test_the_bottleneck_rank_is_that_of_the_last_singular_values():
    values = np.full((3, 3, 2, 2), np.nan)
    values[0, 0], values[0, 2] = [[3.0, 2.0], [3.0, 2.0]], [[1.0, 0.01], [1.0, 0.02]]
    values[1, 1] = [[1.0, 1.0], [1.0, 1.0]]
    history = xr.Dataset({"weight_singular_values": (("member", "step", "layer", "index"), values)})
    assert overview.last_ranks(history) == [1, 2, None]
    assert overview.last_ranks(xr.Dataset(coords={"member": [0, 1]})) == [None, None]


def test_a_run_with_bottlenecks_shows_their_ranks(run):
    history = run.history.copy()
    flat = history["weight_singular_values"]
    history["weight_singular_values"] = (
        flat.dims,
        np.where(np.arange(flat.sizes["index"]) < 2, 1.0, 0.0) + 0 * flat.values,
    )
    bottle = type(run)(history, run.summary, run.settings, run.seconds, run.net, run.parameters)
    rows = shown(bottle._repr_html_()).tables[0]
    assert [row[-1] for row in rows] == ["bottleneck rank", "2", "2", "2"]
    assert "bottleneck rank" in str(bottle)
    assert "bottleneck rank" not in str(run)


def test_a_flow_shows_its_plateaus_and_its_loss():
    flow = results.made("Flow")
    html = flow._repr_html_()
    page = shown(html)
    assert [row[0] for row in page.tables[0]] == ["plateau", *(str(p.number) for p in flow.plateaus)]
    assert html.count("<polyline") == 1
    assert str(flow).startswith(f"gradient flow from t = {flow.times[0]:.4g} to {flow.times[-1]:.4g}")
    assert repr(flow).startswith("Flow(t = ")
