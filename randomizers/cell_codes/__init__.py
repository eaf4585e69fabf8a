"""Which cells an item raises: what a device sends of the items it holds, before any noise."""
