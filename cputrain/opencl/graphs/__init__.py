"""Graphs: the launches of a step, captured once and replayed without Python between them."""
