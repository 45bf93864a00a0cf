"""NetCDF files in memory: bytes of a dataset, and datasets of bytes whose sizes were checked."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnrank._core.sources import FREE, MAX_EXPANSION, DamagedError

if TYPE_CHECKING:
    import xarray as xr


def dump(dataset: xr.Dataset) -> bytes:
    """Return a dataset as the bytes of a NetCDF file."""
    import h5netcdf
    from xarray.backends import H5NetCDFStore

    from bnrank._core.hdf5 import MemoryFile

    buffer = io.BytesIO()  # in memory: HDF5 crashes when the disk is full
    with MemoryFile(buffer) as file, h5netcdf.File(file, "w") as root:
        dataset.compute().dump_to_store(H5NetCDFStore(root))
    return buffer.getvalue()


def parse(data: bytes, path: Path, name: str = "out") -> xr.Dataset:
    """Return the dataset of a NetCDF file, given by its bytes; path and name are for errors.

    Raises
    ------
    DamagedError
        If it is none, refers to other files, or its variables are larger than `FREE` / 4 bytes and `MAX_EXPANSION`
        bytes per byte of the file.
    """
    import xarray as xr

    try:
        _check(data)
        return xr.load_dataset(io.BytesIO(data), engine="h5netcdf")
    except Exception as error:  # of HDF5, h5netcdf, xarray or a codec
        reason = f"{'' if isinstance(error, DamagedError) else type(error).__name__ + ': '}{error}"
        raise DamagedError(f"{name}: {str(path)!r} is damaged or no NetCDF file: {reason}") from error


def _check(data: bytes) -> None:
    import h5py

    size, limit = 0, FREE // 4 + MAX_EXPANSION * len(data)
    with h5py.File(io.BytesIO(data), "r") as file:
        for name in file:
            inside = isinstance(file.get(name, getlink=True), h5py.HardLink)
            entry = file[name] if inside else None
            if not isinstance(entry, h5py.Dataset) or entry.external or entry.is_virtual:
                raise DamagedError(f"{name!r} is no variable stored in the file")
            for size_ in _sizes(entry, len(data), limit):
                size += size_
                if size > limit:
                    raise DamagedError(f"{name!r} of shape {entry.shape} is larger than {limit:,} bytes")


def _sizes(entry: Any, length: int, limit: int) -> Iterator[int]:
    """Yield the bytes in memory of a variable, and of its texts, each at most as long as the file."""
    import h5py

    shape = entry.shape or ()
    yield max(math.prod(shape), math.prod(entry.chunks or ())) * max(entry.dtype.itemsize, 16)
    text = h5py.check_string_dtype(entry.dtype)
    if text is not None and text.length is None and shape:
        rows = max(1, limit // (length * max(1, math.prod(shape[1:]))))
        for first in range(0, shape[0], rows):
            yield sum(map(len, entry[first : first + rows].flat))
