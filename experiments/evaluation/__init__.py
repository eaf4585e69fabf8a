"""Measure protocols over parameters, data and seeds; each trial is a real run in memory.

An experiment file (`experiment`) is a grid of cases. `data` makes the input of a case, `columns`
defines the estimates to compare with the ground truth, and `trial` compares them. `journal` stores
finished trials, `pending_trials` runs pending ones on all cores, and `results` and `plots` show the
results. Jobs over sets of items are queried instead: `counted` runs them, `counted_answers` queries
them, and `pictures` draws one run.
"""
