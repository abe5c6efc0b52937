"""The sockets that claims are given: PipeWire security contexts held by a process of their own."""
