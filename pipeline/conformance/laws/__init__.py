"""The exact laws of our protocols: all that devices may send, with exact probabilities.

A module for each protocol, whose `exact_law` makes what `dpstream.pipeline.conformance.cases` calls
an exact law, worked out independently of what devices run. Those of other packages are found by an
entry point.
"""
