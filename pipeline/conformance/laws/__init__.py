"""Exact output distributions of the built-in protocols.

Each protocol has a module whose `exact_law` constructs the exact law of
`dpstream.pipeline.conformance.cases`, computed independently of the code that devices run. Entry
points provide those of other packages.
"""
