"""A Kubernetes DRA driver for sound: every endpoint of a node is a claimable device and a Sink or Source."""

__version__ = "0.1.0"
