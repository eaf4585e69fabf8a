"""Attacks on the installed code, by somebody who sees what a party sees.

`plans` says what is attacked, `audits` how, and with which probability a correct program may be
convicted; `findings` is what comes of it. Each attack has a module, as README.md says: begin with
`exact`, which enumerates, and `hockey_stick`, which bounds from samples. It knows stages,
simulations, workers, collectors and clients of devices, and no command.
"""
