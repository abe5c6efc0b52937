"""The loops: read the graph, ask the core, call a port."""
