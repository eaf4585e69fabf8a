"""Shuffle, aggregate, publish, sans I/O: a stage takes records and asks for actions.

Begin with `stage`, what all stages have in common, and `stage_builder`, which builds the stages of
a job. `shuffle_stage` collects an epoch's reports: `window_states` has the life of a window as a
table, `window_source` what producers and devices that report themselves do differently,
`window_decision` when a window is decided, `decision_log` what was decided, and `window_writer`
writes the words. `chunk_stage` reads what is released (`attempts`), and a `window_transform` opens
it or adds it up; `publish_stage`, a `single_writer`, estimates (`estimation`) from what `epoch_log`
reads, as does whoever looks back. Who drives them lies in `kafka`: Faust's workers, and
topics in memory.
"""
