"""The registry: which protocols there are, and what every one of them offers.

Begin with `protocol`, which says what a protocol is made of; `registry` has them all. A module for
each holds its entry and its forecast, which says how accurate it will be before there are data;
those that go on over time with a trusted shuffle stage share `shuffled`. Whatever else knows of a
single protocol lies in `randomizers` (its devices) or `aggregators` (its estimates).
"""
