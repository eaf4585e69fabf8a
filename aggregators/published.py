"""What may be published of an epoch."""

from __future__ import annotations

from typing import TypeAlias

from aggregators.estimate import Estimate, ItemEstimates
from aggregators.found_items import FoundItems

Published: TypeAlias = Estimate | ItemEstimates | FoundItems
"""One count, those of all items, or those of the items most held."""
