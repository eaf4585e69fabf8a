"""Shuffle, aggregate, publish, sans I/O: a stage takes records and asks for actions.

Begin with `stage`, what all stages have in common, then `shuffle_stage`, where it is decided what a
window holds (`windows`, `timeline`, `roster` are what it decides by, `decisions` what was decided).
`aggregate_stage` adds windows up (`attempts`), `publish_stage` estimates (`estimation`) from what
`epoch_log` reads, as does whoever looks back. Who drives them lies elsewhere: Faust's workers in
`kafka`, topics in memory in `simulation`.
"""
