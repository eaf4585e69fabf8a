"""Exact output distributions of the built-in protocols.

The function `exact_law` of each module constructs an exact law (see
`dpstream.pipeline.conformance.cases`). An exact law is computed independently of the code that
devices run. Other packages declare entry points instead.
"""
