"""The traps, one file each: documentation, examples, and the code that finds them in a recording."""
