"""What Kubernetes is told about the devices and what a claim gets. Pure: no IO, no clock, no log."""
