"""docs/discovery.md is true: its code runs as written and gives what the text says."""

import pytest

from pages import run_page


@pytest.mark.slow
def test_the_network_of_f4_is_cut_thirtyfold(tmp_path):
    pytest.importorskip("gplearn")  # formulas
    after = run_page("discovery.md", tmp_path)
    certificate = after["small"].certificate
    assert certificate.met
    assert 28 < certificate.parameters_before / certificate.parameters < 41  # 34.5
    assert certificate.held_out.centered > 0.005
    assert after["chain"].widths[0] == after["chain"].widths[-1] == 20
