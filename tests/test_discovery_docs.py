"""docs/discovery.md is true: its code runs as written, in order, and finds what the text says."""

import re
from pathlib import Path

import pytest
import torch

TEXT = (Path(__file__).parents[1] / "docs" / "discovery.md").read_text()


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    """Names that the blocks leave behind, run one after the other in one namespace."""
    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("discovery"))
        for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
            exec(compile(block, "docs/discovery.md", "exec"), names)
        names["files"] = {path.name for path in Path().iterdir()}
    return names


@pytest.mark.slow
def test_the_estimator_finds_two_numbers(after):
    found = after["found"]
    assert found.n_components_ == 2
    assert after["z"].shape == (300, 2)
    task = after["bnrank"].tasks.low_rank_map(n=300, d_in=20, d_out=20, rank=2, noise=0.13, seed=3)
    assert after["y"] == pytest.approx(found.predict(task.x.numpy()), abs=1e-5)


@pytest.mark.slow
def test_rotations_are_found_and_leave_costs_alone(after):
    symmetric, costs = after["symmetric"], after["Costs"]()
    assert symmetric.dimension == 10
    assert symmetric.quotient_dimension == 2
    assert (after["moved"] - after["starts"]).norm() > 1
    torch.testing.assert_close(costs(after["moved"].double()), costs(after["starts"].double()), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_network_is_cut_down_within_the_tolerance(after):
    certificate = after["small"].certificate
    assert certificate.parameters_before > 3 * certificate.parameters
    assert certificate.met
    assert {"found.safetensors", "small.safetensors"} <= after["files"]
