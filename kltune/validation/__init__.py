"""Is it really better? Statistics of per-problem results, as pure functions."""
