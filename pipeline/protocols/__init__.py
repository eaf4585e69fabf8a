"""Registry of protocols and the parts that each provides.

- `protocol` defines the parts; `registry` lists all protocols.
- One module per protocol holds its entry and its forecast, which predicts accuracy without data.
  Protocols that differ in a few rules share one: `baselines`, `measurements`.
- All other code of a single protocol is in `randomizers` (devices) or `aggregators` (estimates).
"""
