"""A Kubernetes DRA driver for sound: every endpoint of a node is a claimable device and a Sink or Source."""
