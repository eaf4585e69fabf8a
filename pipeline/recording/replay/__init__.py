"""Aggregate anonymous windows again: ``dpstream replay``.

`sources` defines the input of a replay, which `topic_source` reads from a job's topics and
`recording_source` from a recording. `replay_plan` chooses the epochs and checks that all inputs
exist. `writer` writes the topics of the replay's job (`jobs.replays`), sans I/O; `in_memory` and
`on_cluster` run the stages on them.

A replay reveals only released data: it draws no noise, closes no window and charges no user.
"""
