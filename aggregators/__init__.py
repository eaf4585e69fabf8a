"""Server side: mergeable integer state, and estimators that are pure functions of it."""
