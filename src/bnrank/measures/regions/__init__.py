"""Exact linear regions of a network: along lines, in a plane, in a box."""

from bnrank.measures.regions.box import enumerate
from bnrank.measures.regions.line import along_line, along_lines
from bnrank.measures.regions.plane import in_plane
from bnrank.measures.regions.region import Region, Regions
from bnrank.measures.regions.tripoints import ClassRegions, tripoints

__all__ = ["ClassRegions", "Region", "Regions", "along_line", "along_lines", "enumerate", "in_plane", "tripoints"]
