"""Whether a protocol keeps what it promises: a suite for protocols of any package.

    pytest --pyargs dpstream.pipeline.conformance.suite --dpstream-protocol NAME

looks at every example that the protocol's entry has, and says in a sentence what does not hold.
`checks` are what is looked at, `cases` is what they look at; `suite` and `plugin` are for pytest.
What has to be written is told in pipeline/protocols/README.md. It knows protocols, devices and
aggregators, and no job.
"""
