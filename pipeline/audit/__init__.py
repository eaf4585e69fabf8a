"""Attacks on the installed code, by somebody who sees what a party sees.

`audits` says what is attacked and with which probability a correct program may be convicted;
`findings` is what comes of it. Each attack has a module: `exact` enumerates, `draws` compares
devices with their law, `side_channels` runs neighbours and compares all that is not randomized.
Begin reading there. It knows stages, simulations and workers, and no command.
"""
