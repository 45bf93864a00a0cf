"""Transformations of x that leave a function unchanged: infinitesimal generators and finite symmetries."""

from bnrank.discovery.symmetry_search.fields import rotations
from bnrank.discovery.symmetry_search.maps import FiniteTest
from bnrank.discovery.symmetry_search.pieces import Piece
from bnrank.discovery.symmetry_search.result import Symmetries
from bnrank.discovery.symmetry_search.search import symmetries
from bnrank.discovery.symmetry_search.spectrum import Found, Gap

__all__ = ["FiniteTest", "Found", "Gap", "Piece", "Symmetries", "rotations", "symmetries"]
