"""Anonymous windows aggregated again: ``dpstream replay``.

`sources` says what a replay reads; `topic_source` reads it from what a job's topics retain,
`recording_source` from a recording. `replay_plan` chooses the epochs and sees that all they need is
there. `writer` writes the topics of the job that a replay runs under (`jobs.replays`), sans I/O,
and `in_memory` and `on_cluster` run the stages on them.

Nothing is learned that was not released: who replays draws nothing, decides nothing and charges
nobody.
"""
