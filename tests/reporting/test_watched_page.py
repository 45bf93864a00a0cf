"""Pages of watched trainings and of monitors."""

import torch
from torch import nn

import bnrank
from bnrank.reporting.charts.watched import watched_headline, watched_view


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
    figures = {chart.title: chart.figure for chart in watched_view(watch).groups[0].charts}
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


def test_the_headline_of_a_training_that_diverged_says_since_when(tmp_path):
    net, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), torch.randn(30, 4)
    with bnrank.watch(net, every=1, x=x) as watch:
        watch.step()
        with torch.no_grad():
            net[0].weight[0, 0] = torch.nan
        watch.step()
        watch.step()
    said = "NaN or infinite since step 2: weights of 0, activations at 2, output."
    path = bnrank.save(watch, tmp_path / "watch.safetensors")
    for found in (watch, bnrank.load(path)):
        assert watched_headline(found).startswith(f"{said} Other layers use 4 to 4 dimensions")
        assert bnrank.report(found, tmp_path / "watch.html").read_text().count(said) == 1
    states = [nn.Linear(3, 2).state_dict(), {"weight": torch.full((2, 3), torch.inf)}]
    assert watched_headline(bnrank.compare(states)).startswith("NaN or infinite since step 1: weights of weight.")


def test_one_measurement_has_no_charts_and_many_layers_are_thinned(tmp_path):
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(15)))
    page = bnrank.report(bnrank.compare([net.state_dict()] * 2), tmp_path / "same.html").read_text()
    assert "Weights have changed by 0 times their norm." in page
    watch = bnrank.watch(net, what=["weights"])
    assert "Nothing was measured yet." in bnrank.report(watch, tmp_path / "empty.html").read_text()
    watch.step(1)
    assert not watched_view(watch).groups[0].charts
    assert "at step 1." in bnrank.report(watch, tmp_path / "one.html").read_text()
    watch.step(100)
    chart = next(chart for chart in watched_view(watch).groups[0].charts if chart.title == "Stable rank of the weights")
    assert (len(chart.figure.data), chart.note) == (12, "12 of 15 layers are shown.")
