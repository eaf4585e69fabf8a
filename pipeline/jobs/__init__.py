"""Job files, deployed jobs and budgets.

- `job_files` parses what users write; `deployed_job` adds what deployment fixes; `jobs_topic` reads
  both from Kafka.
- Each section has a module: `epochs`, `shuffle`, `sealed` and more; short ones are in
  `job_sections`.
"""
