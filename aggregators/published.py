"""What may be published of an epoch."""

from __future__ import annotations

from typing import TypeAlias

from aggregators.estimate import Estimate
from aggregators.found_items import FoundItems
from aggregators.item_estimates import ItemEstimates

Published: TypeAlias = Estimate | ItemEstimates | FoundItems
"""One count, those of all items, or those of the items most held."""
