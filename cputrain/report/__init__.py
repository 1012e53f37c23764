"""Shows values to people, as tables in the terminal. Data goes in, text comes out."""
