"""Least privilege on Kafka: what each role of a job needs, and the ACLs that allow just that.

`table` is pure: a role and a job give privileges, each with the reason for it. `cluster_acls`
names principals, writes ACLs as Kafka's own tools do, compares them with a cluster's, adds and
removes them. Begin reading with `table`.
"""
