"""Recompute the losses stated by accounting from the definition, and compare.

No algorithm of the accounting is reused: outcomes of small mechanisms are enumerated, in integers
or to dozens of digits, and the differences between neighbors are summed. A result never exceeds the
true loss, so any smaller stated loss is wrong, and no correct program fails. The modules share
`small_laws`.
"""
