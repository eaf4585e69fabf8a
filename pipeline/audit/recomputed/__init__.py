"""Recompute, from the definition, the losses that accounting states, and compare the results.

No algorithm of accounting is reused. Outcomes of small mechanisms are enumerated, in integers or
to dozens of digits, and the differences between neighbors are summed. A result never exceeds the
true loss. A stated loss below the result is therefore wrong, and no correct program fails. All
modules use `small_laws`.
"""
