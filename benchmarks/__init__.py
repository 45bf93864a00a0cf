"""Speed and memory of bnrank against the alternatives: ``python -m benchmarks``.

Every number is a ratio of two things timed in turn in one call, so that a busy machine slows both.
"""
