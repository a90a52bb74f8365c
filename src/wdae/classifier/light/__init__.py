"""A model without torch: asked, looked at and shortened from its files alone."""
