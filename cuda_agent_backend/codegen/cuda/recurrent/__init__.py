"""Recurrent layers (LSTM, GRU, RNN): one product, and one kernel that goes through all steps."""
