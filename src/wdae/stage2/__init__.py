"""Stage 2: train the denoiser on stored features, in episodes of fake novel classes."""
