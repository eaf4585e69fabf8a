"""Guarantees and accuracy of a job, predicted before there is any data.

- `job_plan` is the entry point; README.md is for its users.
- `parties` lists the guarantee against each party; `review` lists warnings.
- `recommendation` compares other protocols in detail, `outlook` fewer honest users, and
  `change_budgets` other limits on tracked changes.
"""
