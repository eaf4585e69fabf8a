"""What a value may be: yes or no, labels, numbers, sets, predicates; moments and lengths of time.

A domain turns the texts of a column into whole numbers, and numbers into labels, and says which
questions can be asked about its values: begin with `value_domains`, where the simplest ones are,
then `sets`. `times` says in which epoch a moment lies. Nothing here knows of protocols or jobs.
"""
