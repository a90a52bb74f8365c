"""Training on episodes of pictures: a backbone together with what compares its features."""
