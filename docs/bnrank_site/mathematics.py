"""MathJax from an installed package, so that formulas need no network connection."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.fileutil import copy_asset

PARTS = ("tex-chtml.js", "output/chtml/fonts")  # of 24 MB, those that pages load


def _copy(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        package = find_spec("sphinx-mathjax-offline")
        if package is None or package.origin is None:
            raise ValueError("sphinx-mathjax-offline is not installed, expected the extra 'docs' of bnrank")
        source = Path(package.origin).parent / "static" / "mathjax"
        for part in PARTS:
            target = app.outdir / "_static" / "mathjax" / part
            copy_asset(source / part, target if (source / part).is_dir() else target.parent)


def setup(app: Sphinx) -> dict[str, Any]:
    """Point Sphinx at the copy."""
    app.config.mathjax_path = "mathjax/tex-chtml.js"
    app.config.mathjax3_config = {"options": {"enableMenu": False}}
    app.connect("build-finished", _copy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
