"""The small policy that the trainer makes: its words, what it may say, and how it is sampled."""
