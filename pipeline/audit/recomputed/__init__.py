"""Recompute the losses stated by accounting from the definition, and compare.

Nothing here is computed in the way of accounting: outcomes of small mechanisms are enumerated, in
integers or to dozens of digits, and differences of neighbors are summed. A result never exceeds the
true loss, so anything stated below it is wrong: no correct program fails. `small_laws` is shared.
"""
