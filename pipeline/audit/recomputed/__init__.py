"""What accounting says of losses, computed anew from the definition, and compared.

Nothing here is computed as accounting computes it: outcomes of small mechanisms are enumerated, in
whole numbers or to dozens of digits, and what neighbours differ by is added up. What is found is
never above the truth, so that whatever is stated below it is wrong: no correct program is
convicted. `small_laws` has what all modules here have in common.
"""
