"""Attention pooling: sums over tokens weighed by a softmax of their scores."""
