"""Power products of positive inputs that an output depends on: dimensionless groups."""

from bnrank.discovery.power_products.result import DimensionlessGroups, PowerProduct
from bnrank.discovery.power_products.search import dimensionless_groups

__all__ = ["DimensionlessGroups", "PowerProduct", "dimensionless_groups"]
