"""Comparison with other libraries on the same users, in one run."""
