"""State variables of films: their number, and coordinates that carry two frames to the next two."""

from bnrank.discovery.films.estimator import StateVariables, open_state_variables
from bnrank.discovery.films.summary import FilmSummary

__all__ = ["FilmSummary", "StateVariables", "open_state_variables"]
