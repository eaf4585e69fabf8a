"""Producers, which report for many devices, and their inputs: change logs, item logs, live rows.

Start with `producer`: enroll, report, close. `epoch_records` encodes its reports as records, open
or sealed, and `producer_store` saves them. `producer_input` feeds a producer from a file or from
live rows; `produce_topic` feeds it from a topic of events (`topic_input`). `record_files` reads
files of every format, and `row_reader` interprets their texts. `change_log`, `item_log` and `live`
share `rows` and `tables`. Values never leave this package.
"""
