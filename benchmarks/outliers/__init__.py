"""Counts of tables with planted outliers, and tables without outliers that must remain as they are."""
