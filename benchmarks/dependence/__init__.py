"""Counts of tables whose rows depend on each other: unrelated ones, where the truth is 0, and real relations."""
