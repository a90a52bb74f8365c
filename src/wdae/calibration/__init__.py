"""Step sizes, balance and probabilities, found on classes that play novel."""
