"""Shuffle, aggregate, publish, sans I/O: a stage takes records and asks for actions.

Begin with `stage`, what all stages have in common, then `shuffle_stage`. `shuffle_decision` says
when it decides a window and what the manifest holds (by `windows` and `timeline`), `decision_log`
what was decided, and `window_writer` writes the words. `aggregate_stage` adds windows up
(`attempts`), `publish_stage`, a `single_writer`, estimates (`estimation`) from what `epoch_log`
reads, as does whoever looks back. Who drives them lies elsewhere: Faust's workers in `kafka`,
topics in memory in `simulation`.
"""
