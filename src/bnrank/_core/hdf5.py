"""HDF5 files in memory that h5netcdf writes fast."""

from __future__ import annotations

from typing import Any

import h5py


class MemoryFile(h5py.File):  # type: ignore[misc]
    """A new HDF5 file, written into a buffer, whose objects are opened once.

    h5netcdf opens the object of a variable or dimension at every access, about 600 times for the history of a training,
    which takes most of the time of writing a small file.
    """

    def __init__(self, buffer: Any) -> None:
        super().__init__(buffer, "w", track_order=True)  # as NetCDF requires
        self._known: dict[str, Any] = {"/": self}

    def __getitem__(self, name: Any) -> Any:
        """Return the object of a path or reference."""
        if not isinstance(name, str):
            return super().__getitem__(name)
        if name not in self._known:
            self._known[name] = super().__getitem__(name)
        return self._known[name]

    def __delitem__(self, name: str) -> None:
        """Remove an object."""
        self._known = {"/": self}
        super().__delitem__(name)
