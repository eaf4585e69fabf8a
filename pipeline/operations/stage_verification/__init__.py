"""Whether stages that one has to trust have kept to the rules, from what they leave behind.

`evidence` reads it: manifests, released windows, what stages have signed, and who was registered.
Each rule is a function of evidence, without I/O, and returns a `Finding`: `signatures`, `decisions`
(which windows there are, and when), `contents` (what is in them), `noise`, and `raw`, for whoever
may read raw reports while there are any. `verify_stage.verify_stages` has all of them.
"""
