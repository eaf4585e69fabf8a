"""Exact output distributions of the built-in protocols.

`exact_law` of each module constructs an `ExactLaw` of `dpstream.pipeline.conformance.cases`. It is
computed independently of the code that devices run. Entry points provide those of other packages.
"""
