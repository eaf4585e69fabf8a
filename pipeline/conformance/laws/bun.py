"""Bun et al.: devices are FutureRand's, whatever law their signs follow.

That this law of signs is the one published is tested in tests/randomizers/test_comparisons.py.
"""

from __future__ import annotations

from dpstream.pipeline.conformance.laws.future_rand import ExactLaw

__all__ = ["ExactLaw"]
