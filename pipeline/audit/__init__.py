"""Attacks on the privacy loss of mechanisms and jobs, beside what they claim.

`plans` says what is attacked, `audits` how, what comes of it, and with which probability a correct
program may be convicted. Each attack has a module, as README.md says: begin with
`exact`, which enumerates, and `hockey_stick`, which bounds from samples. It knows stages
and simulations, and no command.
"""
