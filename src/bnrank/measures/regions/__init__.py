"""Exact linear regions of a network: along lines, in a plane, in a box."""

from bnrank.measures.regions.classes import ClassRegions, tripoints
from bnrank.measures.regions.domains import along_line, along_lines, enumerate, in_plane
from bnrank.measures.regions.region import Region, Regions

__all__ = ["ClassRegions", "Region", "Regions", "along_line", "along_lines", "enumerate", "in_plane", "tripoints"]
