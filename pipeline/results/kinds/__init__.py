"""Kinds of publications, one module each: one value, items, numbers.

A kind defines its queries for one number, a few and everything, its headline, sentence and curves,
and what is monitored and smoothed. `published_kind` is the interface, `known_kinds` the registry.
"""
