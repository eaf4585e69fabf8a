"""Cell codes: encodings of an item as the cells that a device sends for it, without noise."""
