"""Memory of training: what a step needs, and steps that need less."""
