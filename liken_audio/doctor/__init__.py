"""`liken-audio doctor`: what this node lacks for sound in pods, each with its fix."""
