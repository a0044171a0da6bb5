"""The supervisor's rules as a table, and every cell of it tried with real processes through real sandboxes."""
