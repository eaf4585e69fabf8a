"""Beside other libraries: the same users, one run."""
