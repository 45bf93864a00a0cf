"""The table of the layers of a profile."""

import pytest
import torch
import xarray as xr
from torch import nn

import bnrank
from bnrank.reporting.by_layer import MAX_REMARKS
from helpers import normal
from notebooks import shown


@pytest.fixture(scope="module")
def profile():
    return bnrank.profile(bnrank.MLP([4, 8, 8, 3], seed=0), normal(60, 4).float())


def test_it_prints_the_headline_and_a_row_per_layer(profile):
    table = bnrank.layer_table(profile)
    first, heading, *rows = str(table).splitlines()
    assert first == table.headline
    assert first.startswith("No bottleneck found (the longest run of layers with the same clear gap has 1 layer, ")
    assert "expected 2): layers use " in first
    assert heading.split()[:2] == ["layer", "name"]
    assert [row.split()[1] for row in rows] == ["layers.0", "layers.1", "layers.2"]
    assert table.profile is profile
    frame = table.to_frame()
    assert frame["rank of W"].tolist() == profile["weight_rank"].values.tolist()
    assert repr(table) == "LayerTable(3 layers)"


def test_a_notebook_shows_the_same_rows(profile):
    table = bnrank.layer_table(profile)
    page = shown(table._repr_html_())
    assert page.words[0] == table.headline
    assert [row[:2] for row in page.tables[0][1:]] == [[str(row["layer"]), row["name"]] for row in table.rows]


def test_weights_alone_are_headed_by_what_is_covered():
    table = bnrank.layer_table(bnrank.profile(bnrank.MLP([4, 8, 3], seed=0).state_dict()))
    assert table.headline == "2 of 4 tensors measured, with 56 of 67 entries"
    assert str(table).count("tensors measured") == 1
    assert "not measured: 2 x bias" in str(table)


def test_few_remarks_are_printed_and_a_notebook_shows_all():
    parts = [nn.Linear(4, 4)]
    for _ in range(MAX_REMARKS + 2):
        parts += [nn.LayerNorm(4), nn.Linear(4, 4)]
    table = bnrank.layer_table(bnrank.profile(nn.Sequential(*parts), normal(60, 4).float()))
    assert str(table).count("skipped") == MAX_REMARKS
    assert str(table).endswith("and 2 more remarks")
    assert shown(table._repr_html_()).text.count("LayerNorm") == MAX_REMARKS + 2


@pytest.mark.parametrize("bad", [None, nn.Linear(2, 2), {"a": torch.zeros(2, 2)}])
def test_what_is_no_dataset_is_refused(bad):
    for make in (bnrank.layer_table, bnrank.reporting.LayerTable):
        with pytest.raises(TypeError, match="profile: got"):
            make(bad)


def test_a_dataset_that_is_no_profile_is_refused():
    with pytest.raises(ValueError, match="profile: got dimensions"):
        bnrank.layer_table(xr.Dataset())
    with pytest.raises(ValueError, match=r"expected the result of bnrank\.profile"):
        bnrank.layer_table(xr.Dataset(coords={"layer": [1]}))
