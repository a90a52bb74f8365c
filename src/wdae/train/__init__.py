"""Training: stage 1 (recognition model) and stage 2 (denoiser)."""
