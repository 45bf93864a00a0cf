"""The documentation as a site: ``make docs``.

Sphinx with the theme, the docstring format and the notebooks that NumPy, pandas, scikit-learn, xarray and PyTorch's own
libraries use: pydata-sphinx-theme, numpydoc-style docstrings and MyST-NB. Pages of the API and of the gallery are
written before each build (``bnrank_site/``). Building and reading need no network connection.

``BNRANK_DOCS=fast`` leaves out what runs code: notebooks and the pictures of examples.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from bnrank_site.sources import digest  # noqa: E402

from bnrank import __version__  # noqa: E402

project = "bnrank"
author = "the bnrank developers"
project_copyright = author
release = version = __version__
fast = os.environ.get("BNRANK_DOCS") == "fast"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "numpydoc",
    "sphinx.ext.mathjax",
    "sphinx_design",
    "sphinx_copybutton",
    "bnrank_site.api",
    "bnrank_site.docstrings",
    "bnrank_site.gallery",
    "bnrank_site.links",
    "bnrank_site.mathematics",
    "bnrank_site.notebooks",
    *([] if fast else ["bnrank_site.pictures"]),
]
# Links to other figures and pages are checked by Sphinx, the built pages by bnrank_site/check.py.
exclude_patterns = ["_build", "bnrank_site", "results", "notebooks"]
nitpicky = True
default_role = "code"
nitpick_ignore_regex = [("py:(class|exc|obj)", r"(?!bnrank\.).*")]  # types of other libraries, as words
suppress_warnings = ["config.cache", "myst.header", "ref.python"]

# Pages
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
myst_dmath_double_inline = True

# Notebooks: executed unless their output is stored, of the same code and the same library
nb_execution_mode = "off" if fast else "cache"
nb_execution_cache_path = str(HERE / "_build" / "executed" / digest())
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

# API
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings give the types
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
numpydoc_attributes_as_param_list = True

# Look
html_theme = "pydata_sphinx_theme"
html_title = f"bnrank {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
toc_object_entries_show_parents = "hide"
html_theme_options = {
    "logo": {"text": "bnrank"},
    "navbar_align": "left",
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "pygments_light_style": "tango",
    "pygments_dark_style": "github-dark",
}
