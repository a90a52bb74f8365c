"""Files that people keep: written whole or not at all, listed with digests, locked while they change."""
