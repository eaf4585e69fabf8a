"""Conformance suite for protocols of any package.

    pytest --pyargs dpstream.pipeline.conformance.suite --dpstream-protocol NAME

checks every example of the protocol's entry and describes each violation in one sentence.

- `checks` has the checks, `cases` their inputs; `suite` and `plugin` integrate with pytest.
- pipeline/protocols/README.md describes what a protocol must provide.
- The suite depends on protocols, devices and aggregators, not on jobs.
"""
