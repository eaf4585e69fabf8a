"""What a job will promise and how accurate it will be, before there are data.

Begin with `plan`. `parties` says what is promised against whom, `review` what to object to,
`alternatives` and `comparison` look at the other protocols that could answer, `outlook` at fewer
honest contributors, `changes` at how many changes to follow. README.md is for those who run it.
"""
