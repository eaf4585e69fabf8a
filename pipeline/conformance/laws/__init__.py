"""Exact output distributions of the built-in protocols, independent of the code that devices run.

The function `exact_law` of each module constructs an exact law.
"""
