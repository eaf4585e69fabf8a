"""Client side: what a device runs, and the exact privacy law of it."""
