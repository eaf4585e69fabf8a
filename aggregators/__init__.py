"""Aggregate reports into mergeable integer state, and compute estimates from that state."""
