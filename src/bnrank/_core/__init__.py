"""Validation, files, text tables and axes for all packages."""
