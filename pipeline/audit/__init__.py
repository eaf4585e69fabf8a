"""Attacks on mechanisms and jobs: they compare the observed privacy loss with the claimed loss.

`plans` selects the attacks; `audits` runs them, and bounds the probability of failing a correct
program. README.md lists the module for each attack. Start with `exact`, which enumerates all views,
and `hockey_stick`, which bounds the loss from samples. No CLI command is imported here.
"""
