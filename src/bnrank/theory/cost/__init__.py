"""The representation cost: the smallest norm of a network of given depth that computes a function (T1 to T14)."""

from bnrank.measures.balance import Imbalance, imbalance
from bnrank.measures.critical_points import Stationarity, stationarity
from bnrank.theory.cost.bounds import LowerBound, R1LowerBound, TwoPointBound, lower_bound, r1_lower_bound, two_point
from bnrank.theory.cost.bracketing import CostBracket, bracket
from bnrank.theory.cost.closed_forms import Corrections, diagonal, linear, linear_corrections, remainder_bound
from bnrank.theory.cost.combination import subadditivity
from bnrank.theory.cost.expansion import Expansion, expand
from bnrank.theory.cost.ladder import solve_depths
from bnrank.theory.cost.pruning import Pruned, prune
from bnrank.theory.cost.rescaling import Balancing, balance, balancing
from bnrank.theory.cost.solving import Solution, shorten, solve
from bnrank.theory.cost.tradeoff import RankTradeoff, least_linear_loss, linear_tradeoff, solved_tradeoff
from bnrank.theory.domains import CompletePositivity, Planarity, completely_positive, planarity, tangent_bound
from bnrank.theory.tours import PathBounds, TourBound, shortest_path_bounds, tsp_bound

__all__ = [
    "Balancing",
    "CompletePositivity",
    "Corrections",
    "CostBracket",
    "Expansion",
    "Imbalance",
    "LowerBound",
    "PathBounds",
    "Planarity",
    "Pruned",
    "R1LowerBound",
    "RankTradeoff",
    "Solution",
    "Stationarity",
    "TourBound",
    "TwoPointBound",
    "balance",
    "balancing",
    "bracket",
    "completely_positive",
    "diagonal",
    "expand",
    "imbalance",
    "least_linear_loss",
    "linear",
    "linear_corrections",
    "linear_tradeoff",
    "lower_bound",
    "planarity",
    "prune",
    "r1_lower_bound",
    "remainder_bound",
    "shorten",
    "shortest_path_bounds",
    "solve",
    "solve_depths",
    "solved_tradeoff",
    "stationarity",
    "subadditivity",
    "tangent_bound",
    "tsp_bound",
    "two_point",
]
