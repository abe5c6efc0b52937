"""BlueZ's objects on D-Bus → Bluetooth speakers of the graph, and calls to them."""
