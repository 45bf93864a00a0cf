"""``python -m bnrank``."""

from bnrank.cli import main

main()
