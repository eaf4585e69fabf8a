"""Record a job's results and the inputs to these results as Parquet files, and replay them.

Start with `recorder`, which reads topics, and `recordings`, which reads files (`recording_index`
lists them, `recording_tables` defines their columns). `replay` aggregates windows again, from
topics or from a recording; `differences` compares two jobs epoch by epoch.
"""
