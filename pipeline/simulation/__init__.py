"""Run a whole job in one process: the real producer and stages on topics in memory.

`simulated_job` is the entry point; it uses `kafka.memory`. `trials` repeats a simulation.
"""
