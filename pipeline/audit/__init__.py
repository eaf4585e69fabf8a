"""Attacks on mechanisms and jobs that compare observed privacy loss with the claimed one.

`plans` selects the attacks; `audits` runs them and bounds the probability of failing a correct
program. README.md lists the module for each attack. Start with `exact`, which enumerates all views,
and `hockey_stick`, which bounds the loss from samples. No CLI command is imported here.
"""
