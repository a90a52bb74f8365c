"""Stage 1: train the backbone, the base weights and the scale on the base classes."""
