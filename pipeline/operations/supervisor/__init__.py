"""``dpstream run STAGE`` without a job: one worker process for every deployed job."""
