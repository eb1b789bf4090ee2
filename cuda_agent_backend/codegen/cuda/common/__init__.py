"""What several CUDA families share: indices, frames, pieces of text, launches."""
