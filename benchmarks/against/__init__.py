"""bnrank against what else people use, on cases of known truth: ``python -m benchmarks.against``.

Each subject is a module with three functions:

``cells(quick)``
    The cases, each a dictionary that can be written as JSON and says everything that defines it, with ``seed``, and
    ``tuned``: True where rules of the library were chosen on such cases. The seed is the outer loop, so that a run
    that is cut short has the same number of seeds in all rows.
``measure(cell)``
    One dictionary per method, with ``method`` and its numbers, or ``failed`` and the reason. No key of the cell.
``tables(results)``
    Markdown, from a flat list: one dictionary ``{**cell, **result}`` per cell and method.
"""
