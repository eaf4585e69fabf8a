"""Exact output distributions of the built-in protocols.

`exact_law` of each module constructs an exact law (see `dpstream.pipeline.conformance.cases`),
computed independently of the code that devices run. Other packages use entry points.
"""
