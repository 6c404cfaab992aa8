"""No baseline: the advantage is the return."""
