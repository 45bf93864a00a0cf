"""Gradient flow with error control, optionally skipping the plateau around the origin."""

from bnrank.training.gradient_flow.integration import flow
from bnrank.training.gradient_flow.record import Flow, Handover, Row

__all__ = ["Flow", "Handover", "Row", "flow"]
