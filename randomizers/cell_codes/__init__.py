"""Cell codes: the cells that a device sends for its items, before any noise."""
