"""Aggregate anonymous windows again: ``dpstream replay``.

`sources` defines the input of a replay, `replay_plan` chooses the epochs, and `writer` writes the
topics of the replay's job. `in_memory` and `on_cluster` run the stages on them.

A replay reveals only released data: it draws no noise, closes no window and charges no user.
"""
