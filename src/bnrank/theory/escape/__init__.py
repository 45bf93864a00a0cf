"""How a network leaves the saddle at the origin: escape directions, their speeds, and what follows (T34 to T41)."""

from bnrank.measures.one_neuron import OneNeuron
from bnrank.theory.escape.direction import EscapeDirection, deepen, speed
from bnrank.theory.escape.joins import JoinRate, exit_time, join_rate
from bnrank.theory.escape.laws import FirstEscape, blow_up_time, first_escape, norm_at, time_to
from bnrank.theory.escape.one_neuron import one_neuron_speed, rank_one_speed
from bnrank.theory.escape.reading import output_gradient
from bnrank.theory.escape.search import Steps, find
from bnrank.theory.escape.stationarity import examine, residual
from bnrank.theory.statements.escape import check

__all__ = [
    "EscapeDirection",
    "FirstEscape",
    "JoinRate",
    "OneNeuron",
    "Steps",
    "blow_up_time",
    "check",
    "deepen",
    "examine",
    "exit_time",
    "find",
    "first_escape",
    "join_rate",
    "norm_at",
    "one_neuron_speed",
    "output_gradient",
    "rank_one_speed",
    "residual",
    "speed",
    "time_to",
]
