"""What a job may publish, a module for each kind: one value, items, numbers.

Each kind knows everything that depends on it: what is asked in one number, in a few and of
everything, its headline, its sentence, its curves, what is watched and what can be looked back at.
Begin with `published_kind`, which says what a kind answers, and with `known_kinds`, which has them.
"""
