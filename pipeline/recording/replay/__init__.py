"""Aggregate anonymous windows again: ``dpstream replay``.

`sources` defines the input of a replay, which `topic_source` reads from a job's topics and
`recording_source` from a recording. `replay_plan` chooses the epochs and checks that all inputs
exist. `writer` writes the topics of the job of a replay (`jobs.replays`), sans I/O; `in_memory` and
`on_cluster` run the stages on them.

A replay reveals only what was released: it draws nothing, decides nothing and charges no user.
"""
