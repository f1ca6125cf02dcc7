"""A report of a workspace for people (HTML, Markdown) and machines (JSON)."""
