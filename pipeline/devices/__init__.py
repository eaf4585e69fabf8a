"""Producers, which report for many devices, and their inputs: change logs, item logs, live rows.

Start with `producer`: enroll, report, close. `epoch_records` encodes a producer's reports as
records, open or sealed, and `producer_store` saves the records. `producer_input` feeds a producer
from a file or from live rows; `produce_topic` feeds it from a topic of events (`topic_input`).
`record_files` reads files in every format, and `row_reader` interprets the texts in rows.
`change_log`, `item_log` and `live` share `rows` and `tables`. Values never leave this package.
"""
