"""Pseudo-novel classes, step sizes ε, balance and probabilities: once, for research and practice."""
