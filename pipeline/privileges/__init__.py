"""Least privilege on Kafka: what each role of a job needs, and the ACLs that allow just that.

`table` is pure: a role and a job give privileges, each with the reason for it. `bindings` names
principals, and writes ACLs as Kafka's own tools do. `cluster_acls` compares them with a cluster's,
adds and removes them. Begin reading with `table`.
"""
