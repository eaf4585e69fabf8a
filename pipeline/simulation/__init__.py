"""Run a whole job in one process. Start with `simulated_job`; `trials` repeats a simulation."""
