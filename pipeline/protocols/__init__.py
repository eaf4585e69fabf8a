"""Registry of protocols, and the interfaces that each protocol implements.

- `protocol` defines the interfaces; `registry` lists all protocols.
- Each protocol has a module with its registry entry and its forecast of accuracy without data.
- All other code for a single protocol is in `randomizers` (devices) or `aggregators` (estimates).
"""
