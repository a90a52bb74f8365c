"""Run folders: everything one command produced, with its environment and progress."""
