"""Transformations of x that leave a function alone: infinitesimal generators and finite symmetries."""

from bnrank.discovery.symmetries.fields import rotations
from bnrank.discovery.symmetries.finding import Found, Gap
from bnrank.discovery.symmetries.finite import FiniteTest
from bnrank.discovery.symmetries.pieces import Piece
from bnrank.discovery.symmetries.result import Symmetries
from bnrank.discovery.symmetries.search import symmetries

__all__ = ["FiniteTest", "Found", "Gap", "Piece", "Symmetries", "rotations", "symmetries"]
