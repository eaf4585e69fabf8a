"""``dpstream run STAGE`` without a job: one worker process for every deployed job.

`schedule.Schedule` decides, from what is wanted, what runs and the time, which workers to start and
to end; `wanted` reads what is wanted from ``dpstream.jobs``; `children` are processes; `watch`
makes one scrape and one health of theirs; `supervise` puts it together.
"""
