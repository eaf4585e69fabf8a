"""The experiments on protocols, and the scripts that prepare their data.

Begin with `shipped`, the list: every ``NAME.yaml`` here is run by ``python -m experiments NAME``,
which `command` parses. `evaluation` runs the trials. A ``prepare_...`` module makes the log of data
that may not be passed on with this software, from a public file. This package is not installed:
run it from the root folder of the repository.
"""
