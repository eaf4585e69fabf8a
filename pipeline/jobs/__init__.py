"""Job files, deployed jobs, budgets: what a job is and what it may cost.

Begin with `job_files`, what people write, and `deployed_job`, what becomes of it; `jobs_topic`
reads both from Kafka. Sections have modules of their own: `epochs`, `shuffle`, `sealed` and more,
short ones `job_sections`. `job_differences` says in what two jobs differ. `epoch_times` places
epochs in time, `job_range` says what lies within a job. Problems of a file are told by
`job_problems`, with the line they are in.
"""
