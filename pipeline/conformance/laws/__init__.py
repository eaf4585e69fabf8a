"""The exact laws of our protocols: all that devices may send, with exact probabilities.

A module for each protocol, with an `ExactLaw` as `dpstream.pipeline.conformance.cases` says, worked
out independently of what devices run. Those of other packages are found by an entry point.
"""
