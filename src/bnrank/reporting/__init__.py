"""Pages, charts, still pictures and tables of results."""

from bnrank.reporting import stills as plots
from bnrank.reporting import tables
from bnrank.reporting.by_layer import LayerTable
from bnrank.reporting.live import follow
from bnrank.reporting.page import report
from bnrank.reporting.saved import load, save
from bnrank.reporting.sections import Section

__all__ = ["LayerTable", "Section", "follow", "load", "plots", "report", "save", "tables"]
