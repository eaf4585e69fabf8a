"""Exact output distributions of the built-in protocols, independent of devices' code."""
