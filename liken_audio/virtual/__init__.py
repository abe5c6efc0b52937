"""Virtual cards: endpoints from a file, for clusters and laptops without sound hardware."""
