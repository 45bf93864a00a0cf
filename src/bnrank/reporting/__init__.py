"""Tables, plots and the page."""

from bnrank.reporting import plots, tables
from bnrank.reporting.page import report
from bnrank.reporting.sections import Section

__all__ = ["Section", "plots", "report", "tables"]
