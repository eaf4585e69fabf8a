"""A whole job in one process: the real producer and stages on topics in memory.

Begin with `simulated_job`, which runs it on `kafka.memory`. `trials` repeats a job.
"""
