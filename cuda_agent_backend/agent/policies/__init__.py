"""What may write kernels: a search, a language model behind an endpoint or in this process, a replay, a mixture."""
