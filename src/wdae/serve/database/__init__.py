"""What the service knows: models, classes, pictures, and every revision of them."""
