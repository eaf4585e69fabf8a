"""The ledger: charges of populations, their reasons and their budgets, as chained entries.

Start with `entries`, the records, and `chain`, which determines the entries that count as a pure
function of the log. `spending` joins it to ``dpstream.jobs``, `writing` decides the next record,
and `verification` finds illegitimate changes. `ledger_report` computes what streams are charged
once. Only `ledger_topic` and `ledger_report`, which compares the ledger with releases, do I/O.
"""
