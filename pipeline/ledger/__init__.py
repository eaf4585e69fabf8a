"""The ledger: what people were charged, for what, and the most they may be, each entry chained.

Begin with `entries`, what is written, and `chain`, which of it counts: a pure function of the log.
`spending` joins it to what ``dpstream.jobs`` says, `writing` decides what is to be written next,
and `verification` finds what nobody may have done to the topic. `ledger_report` says what
streams are charged once. All of it is sans I/O but `ledger_topic`,
which reads and writes the topic, and `ledger_report`, which compares it with what was released.
"""
