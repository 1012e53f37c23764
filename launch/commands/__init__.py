"""One module for each verb, each with `main(argv) -> int`."""
