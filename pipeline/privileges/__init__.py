"""Least privilege on Kafka: the privileges that each role of a job needs, and their ACLs.

Start with `table`, which maps a job and a role to privileges, each with a reason. `cluster_acls`
compares the ACLs with those of a cluster, adds ACLs and removes ACLs.
"""
