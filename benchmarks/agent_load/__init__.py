"""What `benchmarks/server.py` measures with: in-memory sandboxes, servers in processes, a lean client."""
