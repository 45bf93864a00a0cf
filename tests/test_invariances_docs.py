"""docs/invariances.md is true: its code runs as written, in order, and gives what the text says."""

import re
import warnings
from pathlib import Path

import pytest
import torch

from bnrank import figures

TEXT = (Path(__file__).parents[1] / "docs" / "invariances.md").read_text()


@pytest.fixture(scope="module")
def after():
    """Names that the blocks leave behind, run one after the other in one namespace."""
    names = {}
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                exec(compile(block, "docs/invariances.md", "exec"), names)
    return names


def test_the_convolutional_network_conserves_what_is_said(after):
    found = after["found"]
    assert [c.name for c in found.having("matrix")] == ["matrix 3 | 4"]
    assert after["matrix"].size == 5
    assert after["pair"].size == 8
    assert not found.outside


def test_the_tail_becomes_low_rank(after):
    tail = after["tail"]
    assert tail.ratios(after["flow"].networks[0]) == pytest.approx([0.341, 0.496, 1], abs=1e-3)
    assert tail.ratios(after["after"]) == pytest.approx([0.975, 0.980, 1], abs=1e-3)
    bounds = tail.bounds(after["after"], after["start"])
    assert all(0.95 * bound.left < bound.right <= bound.left * (1 + 1e-9) for bound in bounds)
    assert all(one.value >= one.minimum for one in tail.alignments(after["after"], after["start"]))


def test_the_numbers_of_the_small_graph(after):
    small = after["small"]
    assert (small.count(), small.through(("x1", "h"))) == (3, 1)
    assert small.vertex_invariants() == {"h": pytest.approx(12.75)}
    assert small.layer_invariant(after["first"], after["last"]) == pytest.approx(12.75)
    assert not small.is_cut([("x1", "h"), ("x1", "y")])


def test_the_ensemble_of_the_mixture_is_trained(after):
    loss = after["run"].history.loss
    assert loss.sizes["member"] == 3
    assert bool((loss[:, -1] < loss[:, 0]).all())


def test_the_figures_named_exist():
    named = re.findall(r"`bnrank reproduce (\w+)`", TEXT)
    assert named
    for name in named:
        figures.find(name)
