"""Client side: what a device runs, and the exact privacy law of it.

A package for each protocol: parameters, law and devices are imported from it, `calibration` makes a
law from parameters. What they share stands beside them: `devices` and `laws` are the base classes,
`guarantee` is what a law promises. `accounting` composes and amplifies losses, and knows no
protocol. Nothing that a device runs imports a calibration or accounting. Begin with `future_rand`.
"""
