"""Convolutions through oneDNN on x86 CPUs. Off unless asked for."""
