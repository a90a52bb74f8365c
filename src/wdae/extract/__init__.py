"""Extraction: pictures to a feature bank with a trained backbone."""
