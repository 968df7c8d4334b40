"""What a watch records while a program runs: samples, waits, compilations, transfers, profiles."""
