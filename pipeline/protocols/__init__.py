"""The registry: which protocols there are, and what every one of them offers.

Begin with `protocol`, which says what a protocol is made of; `registry` has them all. A module for
each holds its entry and its forecast, which says how accurate it will be before there are data;
those that differ in a few rules share one, `baselines` or `measurements`. Whatever else knows of a
single protocol lies in `randomizers` (its devices) or `aggregators` (its estimates).
"""
