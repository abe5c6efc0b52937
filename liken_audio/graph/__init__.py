"""What exists on this node: frozen snapshots, their join into endpoints, their names. Pure: no IO, no clock, no log."""
