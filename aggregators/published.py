"""What may be published of an epoch."""

from __future__ import annotations

from typing import TypeAlias

from dpstream.aggregators.crowd_estimates import CrowdEstimates
from dpstream.aggregators.estimate import Estimate
from dpstream.aggregators.found_items import FoundItems
from dpstream.aggregators.item_estimates import ItemEstimates

Published: TypeAlias = Estimate | ItemEstimates | FoundItems | CrowdEstimates
"""One count, those of all items, those of the items most held, or those of items by crowd."""
