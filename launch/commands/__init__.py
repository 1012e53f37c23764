"""Commands of `cputrain`, a module for each verb with `main(argv) -> int`."""
