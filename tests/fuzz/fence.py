"""A fence around the fuzzer's files: no call writes, renames or removes anything outside of a temporary folder."""

import os
import sys
from pathlib import Path
from typing import Any

_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def raise_fence(*folders: Path) -> None:
    """Refuse, in this process and for good, every change of files outside of the folders.

    Code that is not Python's opens files unseen; the library moves what such code wrote in place with ``os.replace``.
    """
    sys.dont_write_bytecode = True
    allowed = tuple(os.path.realpath(folder) for folder in folders)

    def inside(path: Any) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return True  # a descriptor that is open already
        full = os.path.realpath(os.fsdecode(path))
        return full == os.devnull or any(full == one or full.startswith(one + os.sep) for one in allowed)

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = bool(flags & _WRITES) if isinstance(flags, int) else any(c in str(mode) for c in "wax+")
            paths = (path,) if writes else ()
        else:
            paths = tuple(arguments[:2]) if event in ("os.rename", "os.link", "os.symlink") else tuple(arguments[:1])
        if (event == "open" or event in _CHANGES) and not all(inside(path) for path in paths):
            raise PermissionError(f"{event} of {paths}: the fuzzer changes files only in its own folder")

    sys.addaudithook(check)
