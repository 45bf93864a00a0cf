"""Pages of watched trainings and of monitors."""

import torch
from torch import nn

import bnrank
from bnrank.reporting.charts.watched import watched_figures


def test_pages_of_a_watch_and_of_a_monitor(tmp_path):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double(), torch.randn(30, 4).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    monitor = bnrank.invariants.Monitor(net, x[:2], every=1).attach(optimizer)
    with bnrank.watch(net, every=2, x=x) as watch:
        for _ in range(6):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            watch.step()
    figures = watched_figures(watch)
    assert "Subnormal weights" not in figures
    lines = figures["Stable rank of the weights"].data
    assert [line.name for line in lines] == ["0", "2"]
    assert abs(lines[1].y[-1] - watch.history["stable_rank"].sel(layer="2").values[-1]) < 1e-3
    last = watch.history["dimension_95"].values[-1]
    page = bnrank.report(watch, tmp_path / "watch.html").read_text()
    assert f"Layers use {int(last.min())} to {int(last.max())} dimensions at 95 percent of variance" in page
    assert "watch of Sequential" in page
    page = bnrank.report({"Training": watch, "Drift": monitor}, tmp_path / "both.html").read_text()
    assert "Drift of conserved quantities" in page
    assert bnrank.report(monitor, tmp_path / "monitor.html").exists()
