"""Job files, deployed jobs and budgets.

- `job_files` parses user files; `deployed_job` adds what deployment fixes; `jobs_topic` reads both.
- Each section has a module: `epochs`, `shuffle`, `sealed`, ...; short ones are in `job_sections`.
"""
