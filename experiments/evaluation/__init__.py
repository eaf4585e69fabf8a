"""Measures protocols: parameters x data x seeds, each trial the real thing run in memory.

An experiment file (`experiment`) is a grid of cases; `data` makes the input of one, `columns` are
the estimates that are compared with the truth of a run, `trial` does so, `journal` keeps what is
finished, `pending_trials` does the rest on all cores, and `results` and `plots` show it. Jobs over
sets of items are asked instead: `counted` runs them, `counted_answers` asks, and `pictures` draws
one run.
"""
