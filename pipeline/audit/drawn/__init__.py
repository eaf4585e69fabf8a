"""What is drawn by the laws that guarantees rest on, and what devices keep of it.

`scripts` gives samplers the very random words at which a draw has to change, `samplers` compares
many draws with their laws, `books` goes over what devices note of what they have spent; `attacks`
lists them.
"""
