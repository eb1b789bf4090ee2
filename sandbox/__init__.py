"""The judge: compiles, runs and measures code it does not trust, and says what it is worth."""
