"""Beyond one process: ranks under torch's elastic agent."""
