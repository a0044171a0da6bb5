"""Every fault that a harness must live through, tried on each real harness in real sandboxes."""
