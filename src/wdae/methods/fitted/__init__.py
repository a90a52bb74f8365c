"""Classifiers fitted to the shots of an episode, and statistics of base features that help them."""
