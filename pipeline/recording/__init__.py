"""Recordings: what a job published and what it rests on, as Parquet files; and replaying them.

Begin with `recorder`, which reads topics, and `recordings`, which reads files (`recording_index`
says what there is, `recording_tables` in which columns). `replay` aggregates windows again, from
topics or from a recording, and `differences` compares two jobs epoch by epoch.
"""
