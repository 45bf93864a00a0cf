"""Where data come from."""

from bnrank.tasks.task import Task, Truth

__all__ = ["Task", "Truth"]
