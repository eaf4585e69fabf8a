"""What was published, read again: estimates, the counts behind them, questions to them.

Begin with `follow`, which reads estimates as they come, and `questions`: each kind reads what
people write and knows its answers from any counts, and the truth beside them. `queries` asks what
was published, `epoch_counts` has the windows to be asked. `smoothing` looks back over a horizon.
Nothing here writes to Kafka.
"""
