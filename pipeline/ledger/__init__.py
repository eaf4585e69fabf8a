"""The ledger: charges to populations, the reasons for them, and budgets, as chained entries.

Start with `entries`, the records, and `chain`, a pure function of the log that determines which
entries are valid. `spending` joins the ledger to ``dpstream.jobs``, `writing` decides the next
record, and `verification` finds unauthorized changes. `ledger_report` compares the ledger with
published releases. Only `ledger_topic` and `ledger_report` do I/O.
"""
