"""Attacks on mechanisms and jobs that compare observed privacy loss with the claimed one.

`plans` selects the attacks; `audits` runs them and bounds the probability of failing a correct
program. Each attack has a module, listed in README.md: start with `exact`, which enumerates, and
`hockey_stick`, which bounds from samples. The package uses stages and simulations, but no command.
"""
