"""Least privilege on Kafka: what each role of a job needs, and the ACLs that allow just that.

Start with `table`, which is pure: a role and a job give privileges, each with a reason.
`cluster_acls` compares ACLs with a cluster's, adds and removes them.
"""
