"""What a job will promise and how accurate it will be, before there are data.

Begin with `plan`. `alternatives` looks at the other protocols that could answer, `changes` at how
many changes to follow, `composed_epochs` at what several epochs cost together.
"""
