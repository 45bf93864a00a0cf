"""Docstrings as written, plain formulas included, made safe for reStructuredText."""

import re
from typing import Any

from sphinx.application import Sphinx

# What has a meaning in both: literals, roles, references.
KEPT = re.compile(r"(``.+?``|:[\w:]+:`[^`]+`|`[^`]+`_{0,2}|\*\*\w[^*]*\*\*|(?<![\w*])\*\w[^*]*\w\*(?![\w*]))")
NAMED = re.compile(r"\s*[\w*]+(, [\w*]+)*( : |$)")  # a parameter or attribute, which napoleon escapes
DIRECTIVE = re.compile(r"\s*\.\. ")


def escaped(line: str) -> str:
    r"""Return a line in which bars, stars and trailing underscores are just characters.

    >>> escaped("log |Jf(x)|_+ of ``a|b``, *not* 2 * 3")
    'log \\|Jf(x)\\|\\_+ of ``a|b``, *not* 2 \\* 3'
    """
    parts = KEPT.split(line)
    for i in range(0, len(parts), 2):
        bullet = re.match(r"\s*\* ", parts[i]) if i == 0 else None
        head, rest = (bullet.group(), parts[i][bullet.end() :]) if bullet else ("", parts[i])
        rest = re.sub(r"(?<!\\)([|*])", r"\\\1", rest)
        parts[i] = head + re.sub(r"(?<=[\w|)\]\}])_(?!\w)", r"\\_", rest)
    return "".join(parts)


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape the lines of a docstring, except doctests, tables, and indented blocks after "::"."""
    example = literal = None
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            example = None
            continue
        if literal is not None and indent > literal:
            continue
        literal = indent if line.rstrip().endswith("::") else None
        if line.lstrip().startswith(">>>"):
            example = True
        if not (example or DIRECTIVE.match(line)):
            named = NAMED.match(line)
            head = named.group() if named else ""
            lines[i] = head + escaped(line[len(head) :])


def setup(app: Sphinx) -> dict[str, Any]:
    """Before sections of numpydoc are read."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
