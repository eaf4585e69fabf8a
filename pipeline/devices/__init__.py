"""Producers, which stand for devices, and what they read: change logs, item logs, live rows.

Begin with `producer`: enrol, report, close. What it has drawn `epoch_records` turns into records,
open or sealed, and `producer_store` keeps. `producer_input` feeds it from a file or from rows as
they come, `produce_topic` from a topic of events (`topic_input`). `record_files` reads files of
every format, `row_reader` says what their texts mean; `rows` and `tables` are what `change_log`,
`item_log` and `live` share. A value goes no further than this package.
"""
