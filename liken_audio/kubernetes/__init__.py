"""The edge to the API server."""
