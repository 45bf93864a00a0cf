"""Datasets as the bytes of NetCDF files."""

import io

import numpy as np
import pytest
import xarray as xr

from bnrank._core import netcdf


@pytest.fixture
def dataset():
    values = np.random.default_rng(0).standard_normal((3, 4, 2))
    return xr.Dataset(
        {"loss": (("member", "step"), values[..., 0]), "values": (("member", "step", "index"), values), "scalar": 1.5},
        coords={
            "member": [0, 1, 2],
            "step": [0, 10, 20, 40],
            "seed": ("member", [5, 6, 7]),
            "status": ("member", ["finished", "a", "größer"]),
        },
        attrs={"settings": "{}", "depth": 2, "skipped": []},
    )


def test_a_file_is_the_one_that_xarray_writes(dataset):
    ours, theirs = netcdf.dump(dataset), bytes(dataset.to_netcdf(engine="h5netcdf"))
    differing = [i for i in range(len(theirs)) if ours[i] != theirs[i]]
    assert len(ours) == len(theirs)
    assert len(differing) <= 8 * len(dataset.variables)  # old versions of HDF5 write the time of day
    xr.testing.assert_identical(xr.load_dataset(io.BytesIO(ours)), xr.load_dataset(io.BytesIO(theirs)))


def test_it_comes_back(dataset, tmp_path):
    again = netcdf.parse(netcdf.dump(dataset), tmp_path)
    xr.testing.assert_equal(again, dataset)
    assert again.sizes == dataset.sizes
    assert (again.attrs["settings"], again.attrs["depth"], len(again.attrs["skipped"])) == ("{}", 2, 0)


def test_chunks_of_dask_are_computed(dataset):
    pytest.importorskip("dask")
    assert netcdf.dump(dataset.chunk({"step": 2})) == netcdf.dump(dataset)
