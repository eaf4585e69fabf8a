"""Privacy accounting: noise laws, loss distributions, amplification and composition.

Runs where a job is planned or deployed, never on a device, and knows no protocol: what these ask of
it stands in their calibrations. Begin with `cell_noise` and `loss_distributions`.
"""
