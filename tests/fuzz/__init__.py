"""A fuzzer of the public functions: bad and unusual arguments, each call judged.

``python -m tests.fuzz --calls 10000 --seed 0`` draws calls for every public function, method and class, runs them in
worker processes with limits of time and memory, and prints the distinct findings with a line that repeats each.
"""
