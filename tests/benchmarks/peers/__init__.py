"""Comparison with other libraries: the same users, one run."""
