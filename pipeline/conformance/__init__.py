"""Conformance suite for protocols from any package.

    pytest --pyargs dpstream.pipeline.conformance.suite --dpstream-protocol NAME

checks every example in the protocol's registry entry and describes each violation in one sentence.

- `cases` defines the inputs of `checks`; `suite` and `plugin` integrate with pytest.
- pipeline/protocols/README.md describes what a protocol must provide.
- The suite depends on protocols, devices and aggregators, not on jobs.
"""
