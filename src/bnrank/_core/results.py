"""What all results share: how a notebook shows them."""

import html


class Printed:
    """Results that a notebook shows as they print: a mixin for classes with a ``__str__``.

    Examples
    --------
    >>> class Rank(Printed):
    ...     def __str__(self):
    ...         return "rank < 3"
    >>> Rank()._repr_html_()
    '<pre>rank &lt; 3</pre>'
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
