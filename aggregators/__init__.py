"""Server-side aggregators: mergeable integer state, and estimators that are functions of it."""
