"""Data sets: maps of known rank, shapes in the plane, handwritten digits, and the user's tables.

Every generator returns a :class:`Task`.
"""

from bnrank.tasks.autoencoding import autoencoder, crosses_itself, distances_to_polyline, planar_curve, polyline
from bnrank.tasks.factorizations import RankOneFactorization, matrix_factorization, rank_one_factorization
from bnrank.tasks.images import digits, handwritten_digits, mnist, parse_idx, two_digits
from bnrank.tasks.kernel_targets import TorusTarget, lattice_sum, on_torus, torus_map
from bnrank.tasks.latent_maps import ShallowReLU, block_norms, bottleneck_spectra_map, composition, low_rank_map
from bnrank.tasks.shapes import ball_images, circle, falling_ball, inverted_s, s_shapes, separable
from bnrank.tasks.tables import NAMED, Table, load_table, read_table
from bnrank.tasks.task import MissingDataError, Task, Truth

__all__ = [
    "NAMED",
    "MissingDataError",
    "RankOneFactorization",
    "ShallowReLU",
    "Table",
    "Task",
    "TorusTarget",
    "Truth",
    "autoencoder",
    "ball_images",
    "block_norms",
    "bottleneck_spectra_map",
    "circle",
    "composition",
    "crosses_itself",
    "digits",
    "distances_to_polyline",
    "falling_ball",
    "handwritten_digits",
    "inverted_s",
    "lattice_sum",
    "load_table",
    "low_rank_map",
    "matrix_factorization",
    "mnist",
    "on_torus",
    "parse_idx",
    "planar_curve",
    "polyline",
    "rank_one_factorization",
    "read_table",
    "s_shapes",
    "separable",
    "torus_map",
    "two_digits",
]
