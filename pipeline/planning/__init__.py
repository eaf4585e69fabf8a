"""What a job will promise and how accurate it will be, before there are data.

Begin with `job_plan`. `parties` says what is promised against whom, `review` what to object to,
`plan_alternatives` and `recommendation` look at other protocols that could answer, `outlook` at
fewer honest contributors, `change_budgets` at how many changes to follow. README.md is for those
who run it.
"""
