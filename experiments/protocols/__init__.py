"""Protocols of papers with which those of dpstream are compared, and one that learns a model.

`dpstream` finds them by the entry points in ``experiments/pyproject.toml``, like the protocols of
any other package. Every protocol has one folder with its mechanism and devices, `calibration`, the
registry entries, the aggregator, and the exact law of the conformance suite.
"""
