"""inspan's session machine, run by other packages, to measure beside."""
