"""Client side: the code that a device runs, and its exact privacy guarantee.

Each protocol has a package with its parameters, mechanism and devices. The `calibration` module of
the package computes a mechanism from parameters. Shared base classes are in `devices` and `laws`.
`accounting` composes and amplifies losses, independently of protocols. Code that a device runs
imports neither calibrations nor accounting. Start reading with `future_rand`.
"""
