"""Job files, deployed jobs and budgets.

- `job_files` parses job files; `deployed_job` adds the values that are fixed at deployment.
- `jobs_topic` reads deployed jobs, phases, charges and budgets from ``dpstream.jobs``.
- Each section of a job file has a module, such as `epochs`; short ones share `job_sections`.
"""
