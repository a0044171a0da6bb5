"""The supervisor's rules as a table, and each of its cells tried with real processes in real sandboxes."""
