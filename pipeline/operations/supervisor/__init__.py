"""``dpstream run STAGE`` without a job: one worker process for every deployed job.

`schedule.Schedule` decides which workers to start and stop, given the requested jobs
(`target_tasks`), the running workers (`children`) and the current time. `watch` combines the
metrics and health of the workers, and `supervise` connects these modules.
"""
