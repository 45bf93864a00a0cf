"""What stored outputs depend on."""

import functools
import hashlib
from pathlib import Path

import bnrank


@functools.cache
def digest() -> str:
    """Return a digest of the library's source: outputs of another one are computed anew."""
    found = hashlib.sha256()
    package = Path(bnrank.__file__).parent
    for path in sorted(package.rglob("*.py")):
        found.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]
