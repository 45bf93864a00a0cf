"""The arrays of .npz and .npy files."""

import math
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np

from bnrank._core import sources, validation

_UNREADABLE = (
    *(ValueError, KeyError, EOFError, OSError, NotImplementedError, RuntimeError, MemoryError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, SyntaxError, tokenize.TokenError),
)
ARRAYS = ("x", "y", "x_test", "y_test")


def read_arrays(path: Path, outputs: bool) -> dict[str, np.ndarray]:
    """Return the arrays x, y, x_test and y_test that are in a file; x, and y where ``outputs``, must be.

    Raises
    ------
    TypeError, ValueError
        If the file is damaged or expands beyond the limits, arrays are missing, or are no numbers or classes.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError(f"path: got {path.name!r}, which is no .npz archive or a damaged one")
    try:
        archive = np.load(path, allow_pickle=False)
    except _UNREADABLE as error:
        raise ValueError(f"path: got {path.name!r}, which is no .npz archive or a damaged one ({error})") from error
    arrays: dict[str, np.ndarray] = {}
    with archive:
        room = sources.may_expand_to(path.stat().st_size)
        for required in ("x", "y") if outputs else ("x",):
            found = f"arrays {', '.join(archive.files) or 'nothing'}"
            validation.expect(required in archive.files, path.name, found, f"x and y; {required} is missing")
        for name in (name for name in ARRAYS if name in archive.files):
            try:
                room = _room(archive, name, room)
                array = archive[name]
            except _UNREADABLE as error:
                raise ValueError(
                    f"{name}: got unreadable data in {path.name} ({error}), expected plain numbers; "
                    "arrays of Python objects are refused"
                ) from error
            found = f"dtype {array.dtype} in {path.name}"
            kinds = "biufUS" if name.startswith("y") else "biuf"
            validation.expect(array.dtype.kind in kinds, name, found, "real numbers", TypeError)
            validation.expect(array.ndim != 0, name, f"one number in {path.name}", "one row per sample")
            arrays[name] = array.astype(np.str_) if array.dtype.kind == "S" else array
    return arrays


def read_films(path: str | Path) -> np.ndarray | list[np.ndarray]:
    """Return the array in a .npy file, or those in an .npz file, in order: one film or several in each.

    A single array is returned as it is, several as a list.

    Raises
    ------
    TypeError, ValueError
        If there is no such file, it is another kind of file or damaged, or an array holds no numbers.
    """
    path = Path(path)
    validation.expect(path.is_file(), "path", f"{str(path)!r}, which is no file", "films, a .npy or .npz file")
    suffix = path.suffix.lower()
    validation.expect(suffix in (".npy", ".npz"), "path", f"{path.name!r}", "films, a .npy or .npz file")
    try:
        if suffix == ".npy":
            arrays = {"frames": np.load(path, allow_pickle=False)}
        else:
            with np.load(path, allow_pickle=False) as archive:
                room, arrays = sources.may_expand_to(path.stat().st_size), {}
                for name in archive.files:
                    room = _room(archive, name, room)
                    arrays[name] = archive[name]
    except _UNREADABLE as error:
        raise ValueError(f"path: got {path.name!r}, which is damaged or holds no plain numbers ({error})") from error
    for name, array in arrays.items():
        found = f"dtype {array.dtype} in {path.name}"
        validation.expect(array.dtype.kind in "biuf", name, found, "real numbers", TypeError)
    validation.expect(arrays, path.name, "no arrays", "at least one film")
    made = list(arrays.values())
    return made[0] if len(made) == 1 else made


def _room(archive: np.lib.npyio.NpzFile, name: str, room: int) -> int:
    """Return how many more bytes an archive may expand to after an array, which is checked before it is read."""
    assert archive.zip is not None
    stored = archive.zip.getinfo(f"{name}.npy")  # no more bytes than it says are ever read
    validation.expect(stored.file_size <= room, "size", f"{stored.file_size:,} bytes", f"at most {room:,}")
    known = stored.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    validation.expect(known, "compression", f"{stored.compress_type}", "none or deflate")
    with archive.zip.open(stored) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        size = stored.file_size - file.tell()
    found = dtype.itemsize * math.prod(shape)
    validation.expect(dtype.hasobject or found == size, "shape", f"{shape} of {dtype}", f"{size:,} bytes of data")
    return room - stored.file_size
