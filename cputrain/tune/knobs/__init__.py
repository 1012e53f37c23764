"""What is worth trying of each setting: a file for each, listed in `candidates`."""
