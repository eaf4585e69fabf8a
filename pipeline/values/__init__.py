"""Value domains: Booleans, labels, numbers, sets; times and durations.

A domain converts a column's texts to integers, and integers to labels. It also defines which
queries about its values are valid. `value_domains` has the simplest domains, `sets` all others;
`times` maps times to epochs. This package does not depend on protocols or jobs.
"""
