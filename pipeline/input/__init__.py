"""What a job reads: change logs from files, and rows as they come from a live source.

`change_log` and `live` are the two readers; `rows`, `values` and `times` are what they share:
typed rows and the account of bad ones, what a value may be, and which epoch a moment lies in.
"""
