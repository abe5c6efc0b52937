"""The edge to the kubelet: registration, Prepare, Unprepare and health over two unix sockets."""
