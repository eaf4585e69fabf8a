"""A whole job in one process: the real producer and stages on topics in memory.

Begin with `simulate`; `memory` carries out what stages ask for. `trials` repeats a job.
"""
