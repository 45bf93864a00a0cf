"""The version of bnrank, stored with everything it writes."""

__version__ = "0.2.0"
