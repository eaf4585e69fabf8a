"""Experiments on protocols, and scripts that prepare their data.

`shipped` lists the experiments. ``python -m experiments NAME`` runs ``NAME.yaml``: `command` parses
the command line, and `evaluation` runs the trials. A ``prepare_...`` module converts a public file,
which must not be redistributed with this software, to a log. `protocols` has protocols that serve
only for comparison. This package is not in the wheel of dpstream.
"""
