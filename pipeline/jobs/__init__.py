"""Job files, deployed jobs and budgets.

- `job_files` parses job files; `deployed_job` adds the values that a deployment fixes.
- `jobs_topic` reads deployed jobs, phases, charges and budgets from ``dpstream.jobs``.
- Each section has a module: `epochs`, `shuffle`, `sealed`, ...; short ones are in `job_sections`.
"""
