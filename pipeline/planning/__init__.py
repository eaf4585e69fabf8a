"""Guarantees and accuracy of a job, predicted before there is any data.

- `job_plan` is the entry point; README.md is written for users of plans.
- `parties` lists the guarantee against each party; `review` lists warnings.
- `recommendation` compares other protocols in detail, `outlook` considers fewer honest users, and
  `change_budgets` compares other limits on tracked changes.
"""
