"""Evaluation: protocols, metrics, results and how they are shown."""
