"""``dpstream run STAGE`` without a job: one worker process for every deployed job.

`schedule.Schedule` decides which workers to start and stop, `watch` combines their metrics and
health, and `supervise` connects all modules.
"""
